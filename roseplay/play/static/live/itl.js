/* Inter-token latency, with a dot per token.
 *
 * In a batch all tokens of a step wait equally long, so the usual ones are one small grey dot per step (a lane's in its
 * hue); the slow ones are larger, in their request's hue, and spread a little by slot, or they would hide each other.
 * p50, p95 and p99 are of all gaps in the window. The axis includes the longest gap. */
import { logValues } from "../shared/chart/scale.js";
import { write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { legendDot, legendEntry, press, segmented } from "../shared/legend.js";
import { firstWhere, niceAxis, quantile } from "../shared/numbers.js";
import { sharp } from "../shared/pen.js";
import { pointing, standsBack } from "../shared/pointing.js";
import { laneOf, store } from "../shared/store.js";
import { colorOf, fade, hueOf } from "../shared/theme.js";
import { calmAxis } from "./axes.js";
import { Chart } from "./chart.js";
import { gapsIn } from "./gaps.js";
import { dotTrace, levelLine, lineLabel, verticalLine } from "../shared/chart/shapes.js";

const MOST_POINTS = 4000, MOST_TICKS = 8;
const LARGE_OF_P95 = 0.55, LARGE_OF_P50 = 1.5; // a dot is large from both on
const LABEL_PX = 25, SPREAD_PX = 10;
/** @type {[string, number, number[]][]} */
const LINES = [["p50", 0.5, []], ["p95", 0.95, [4, 3]], ["p99", 0.99, [1.5, 2.5]]];

const scale = { log: false, zoom: null }, calm = calmAxis(4);
let widest = 0; // ms of SPREAD_PX
let points = []; // by trace: [{rid, …}]
let showScale = (_log, _slow) => {};

export function mount(element) {
  const axis = segmented("y axis", ["lin", "log"], (word) => {
    scale.log = word === "log";
    scale.zoom = null;
    panel.soon();
  });
  showScale = (log, slow) => {
    write(panel.subtitle, `ms${slow}${log ? ", log" : ""}, one dot per token`);
    press(axis.children, (_, i) => Boolean(i) === log);
  };
  const panel = new Chart(element, {
    name: "itl",
    every: 2,
    timed: true,
    flags: true,
    follows: true,
    margin: { l: 38, r: 48, t: 22, b: 20 },
    nothing: "One dot per token: how long its reader waited.",
    head: [legendEntry(legendDot("ink2"), "slow, by request", "rp-roomy"), axis],
    hover: ({ curveNumber, pointNumber }) => points[curveNumber][pointNumber],
    zoomedY: (range) => (scale.zoom = range),
    draw,
  });
  on("unzoom", () => (scale.zoom = null));
}

function draw(frame) {
  const { runs, sorted, slow: slowMotion } = gapsIn(frame.window);
  if (!sorted.length) {
    const layout = { yaxis: yAxis({ max: 160, least: 0, most: 0, p: [] }) };
    return { empty: true, layout, summary: "Inter-token latency. No tokens in view." };
  }
  widest = (SPREAD_PX * (frame.window.x1 - frame.window.x0)) / frame.width;
  const p = LINES.map(([, q]) => quantile(sorted, q)), least = sorted[0], most = sorted[sorted.length - 1];
  const figures = LINES.map(([name], i) => `${name} ${format.ms(p[i])} ms`).join(", ");
  const summary = `${figures}, longest ${format.ms(most)} ms${slowMotion}, of ${sorted.length} gaps.`;
  const { range: [, max] } = calm(most * 1.06, frame.window.live);
  showScale(scale.log, slowMotion);
  const yaxis = yAxis({ max, least, most, p });
  const { usual, slow } = choose(runs, sorted, Math.max(p[1] * LARGE_OF_P95, p[0] * LARGE_OF_P50), p[1]);
  const layout = { yaxis, shapes: [], annotations: [] };
  addLines(layout, p, yaxis, frame);
  const front = pointing.rid ?? (pointing.selected && pointing.selected.rid);
  if (front !== null) {
    const onTop = ({ rid }) => Number(rid === front);
    for (const dots of [usual, slow]) dots.sort((a, b) => onTop(a) - onTop(b));
  }
  points = [usual, slow];
  const traces = [trace(usual, false, frame.T), trace(slow, true, frame.T)];
  addSelected(traces, layout, [...slow, ...usual], frame);
  return { traces, layout, summary: `Inter-token latency. ${summary}` };
}

/* A token as a dot: slots of a step are spread over four fifths of it, or a few pixels of a long one. */
function dot(run, i) {
  const { tokens } = store, slot = i & tokens.mask;
  const back = Math.min(run.took, widest) * (0.9 - (0.8 * (i - run.from + 0.5)) / (run.to - run.from + 1));
  const rid = tokens.request_id[slot], itl = tokens.itl_ms[slot], t = tokens.t[slot];
  return { rid, step: run.step, itl, t, x: (run.end - back) / 1000 };
}

/* The tokens that become dots: {usual, slow}. At most MOST_POINTS, but always including all that are slower than
 * p95. */
function choose(runs, sorted, slowFrom, p95) {
  const { tokens } = store, usual = [], slow = [];
  const mild = upTo(sorted, p95) - upTo(sorted, slowFrom), stride = Math.ceil(Math.max(1, mild / (MOST_POINTS / 4)));
  let n = 0;
  for (const run of runs) {
    const looks = []; // within a step, usual dots of one look are one dot
    for (let i = run.from; i <= run.to; i++) {
      const itl = tokens.itl_ms[i & tokens.mask];
      if (!(itl > 0)) continue; // a first token, or one that came with the one before
      if (itl > slowFrom) {
        if (itl > p95 || n++ % stride === 0) slow.push(dot(run, i));
      } else {
        const lane = laneHue(tokens.request_id[i & tokens.mask]), look = Math.round(itl * 2) * 16 + lane;
        if (looks.includes(look)) continue;
        looks.push(look);
        usual.push({ ...dot(run, i), lane });
      }
    }
  }
  return { usual: thin(usual, MOST_POINTS - slow.length).sort((a, b) => a.lane - b.lane), slow };
}

/** How many of a sorted array are at most `v`. */
const upTo = (sorted, v) => firstWhere(0, sorted.length, (i) => sorted[i] > v);

/** A lane's hue, or -1 for other requests. */
const laneHue = (rid) => (laneOf(rid) === null ? -1 : hueOf(rid));

function thin(list, most) {
  const stride = Math.ceil(list.length / Math.max(1, most));
  return stride > 1 ? list.filter((gap) => gap.step % stride === 0) : list; // by step, so that the same ones stay
}

function trace(gaps, slow, T) {
  const hues = T.hues.map((hue) => [fade(hue, 0.9), fade(hue, 0.22)]);
  const grey = [fade(T.ink3, 0.42), fade(T.ink3, 0.12)];
  const paint = (gap) => {
    const hue = slow ? hueOf(gap.rid) : gap.lane;
    return (hue < 0 ? grey : hues[hue])[standsBack(gap.rid) ? 1 : 0];
  };
  const x = Float64Array.from(gaps, (gap) => gap.x), y = Float32Array.from(gaps, (gap) => gap.itl);
  return dotTrace(x, y, { color: gaps.map(paint), size: slow ? 3.6 : 1.8, line: { width: 0 } }, slow);
}

// ---- axis -----------------------------------------------------------------------------------------------

function yAxis({ max, least, most, p }) {
  if (scale.log && p.length) {
    const low = Math.floor(Math.log10(Math.max(0.05, least)) * 2) / 2, high = Math.log10(most * 1.15);
    const range = scale.zoom || [low, high], tickvals = logValues(10 ** low, 10 ** high, MOST_TICKS);
    const ticktext = tickvals.map((v) => v < 1 ? String(v) : format.count(v));
    return { type: "log", range, tickmode: "array", tickvals, ticktext, fixedrange: false };
  }
  const range = scale.zoom || [0, max];
  const step = niceAxis(range[1] - range[0], 4).step;
  return { type: "linear", range, tickmode: "linear", tick0: 0, dtick: step, fixedrange: false };
}

const place = (yaxis, v) =>
  ((yaxis.type === "log" ? Math.log10(v) : v) - yaxis.range[0]) / (yaxis.range[1] - yaxis.range[0]);

function addLines(layout, p, yaxis, { height, T }) {
  const lines = LINES.map(([name, , dash], i) => ({ name, dash, v: p[i], at: place(yaxis, p[i]) * height }));
  const shown = lines.filter((one) => one.at >= 0 && one.at <= height + 1);
  const level = (px) => sharp(px) / height;
  const labels = spread(shown.map((one) => one.at), LABEL_PX, height);
  shown.forEach(({ name, dash, v, at }, i) => {
    layout.shapes.push(levelLine(name, level(at), name === "p50" ? T.ink : T.ink2, dash));
    const y = yaxis.type === "log" ? Math.log10(v) : v; // annotations on a log axis are placed by exponent
    layout.annotations.push(lineLabel(T, y, name, format.shortMs(v), T.ink, labels[i] - at));
  });
}

/** Heights (rising) moved up, and down again where the plot ends, until they are `least` apart. */
function spread(heights, least, height) {
  const out = heights.slice();
  for (let i = 1; i < out.length; i++) out[i] = Math.max(out[i], out[i - 1] + least);
  for (let i = out.length - 1, most = height + 6; i >= 0; i--, most -= least) out[i] = Math.min(out[i], most);
  return out;
}

// ---- the selected token ----------------------------------------------------------------------------------
function addSelected(traces, layout, dots, { T }) {
  const { selected } = pointing;
  const chosen = selected && dots.find((gap) => gap.rid === selected.rid && gap.step === selected.step);
  if (!chosen) return;
  const y0 = scale.log ? 10 ** layout.yaxis.range[0] : layout.yaxis.range[0];
  layout.shapes.push({ ...verticalLine("stem", chosen.x, T.ink, { dash: [1, 2] }), yref: "y", y0, y1: chosen.itl });
  for (const [color, size, width] of [[T.surface, 11, 1.5], [colorOf(chosen.rid), 5, 0]]) {
    traces.push(dotTrace([chosen.x], [chosen.itl], { color, size, line: { color: T.ink, width } }));
  }
}
