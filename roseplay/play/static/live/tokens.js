/* Tokens computed in each step, prompt (dark) over decode (light).
 *
 * A bar is as wide as its step lasted, so area is not work and time is honest. The dashed rose line is how high a bar
 * may rise: the prefill budget, above the decode tokens, which do not count against it; it steps where the budget was
 * changed. Bars are the area under two lines: thousands of separate ones would take too long. */
import { write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { legendBox, legendEntry, legendLine } from "../shared/legend.js";
import { niceAxis } from "../shared/numbers.js";
import { store } from "../shared/store.js";
import { fade } from "../shared/theme.js";
import { time } from "../shared/time.js";
import { calmAxis } from "./axes.js";
import { createChart } from "./chart.js";
import { areaTrace, lineLabel, lineTrace } from "./shapes.js";

const LEAST_PX = 0.8; // steps narrower than this share a bar: the fullest of them
const GAP_PX = 0.6; // between bars with prompt tokens
const PASSED_MS = 1000;

const calm = calmAxis({ max: 0, step: 0 });
let summary = "No steps yet.";

export function mount(element) {
  createChart(element, {
    name: "tokens",
    every: 2,
    timed: true,
    margin: { l: 38, r: 48, t: 6, b: 18 },
    nothing: "One bar a step: how many tokens it computed.",
    legend: [
      legendEntry(legendBox("prompt"), "prompt"),
      legendEntry(legendBox("decode"), "decode"),
      legendEntry(legendLine("rose", 1.25, "4 3"), "budget", "rp-hand"),
    ],
    draw,
    describe: () => `Tokens per step. ${summary}`,
  });
  const subtitle = element.querySelector(".rp-sub"), usual = subtitle.textContent;
  on("step", (step) => write(subtitle, inWords(step) ?? usual));
}

/* The step that is pointed at, for where the subtitle stands otherwise; null where there is none. */
function inWords(step) {
  const { steps } = store, { count, ms } = format, row = step === null ? -1 : store.stepRow(step), i = row & steps.mask;
  if (row < 0) return null;
  const tokens = `${count(steps.prompt_tokens[i])} prompt + ${count(steps.decode_tokens[i])} decode`;
  return `${tokens} in ${ms(steps.t1[i] - steps.t0[i])} ms${parts(i)}`;
}

/* Host and device time of a step, and whether it was replayed, where the record has them. */
function parts(i) {
  const { host_ms: host, device_ms: device, graph } = store.steps,
    how = graph[i] === null ? "" : graph[i] ? ", replayed" : ", eager";
  return host[i] || device[i] ? ` (host ${format.ms(host[i])}, device ${format.ms(device[i])}${how})` : how;
}

function draw(frame) {
  const { window, T } = frame;
  const bars = collect(frame);
  const budget = overDecode(limit("prefill_max_tokens", window), bars, frame), total = limit("step_max_tokens", window);
  const most = bars.reduce((max, bar) => Math.max(max, bar.prompt + bar.decode), 0);
  const limits = [...lasting(budget), ...lasting(total)].filter((v) => v !== null && v <= most * 4);
  const ceiling = bars.length ? Math.max(8, most, ...limits) : budget.now || 512;
  const yaxis = yAxis(ceiling, window.live);
  const layout = { yaxis, shapes: [], annotations: [] };
  label(layout, budget, "budget", yaxis, frame);
  if (total.now !== null) label(layout, total, "step", yaxis, frame);
  const prompts = bars.filter((bar) => bar.prompt);
  const traces = [
    areaTrace(...outline(prompts, (bar) => bar.prompt + bar.decode, GAP_PX, frame), fade(T.prompt, 0.9)),
    areaTrace(...outline(bars, (bar) => bar.decode, 0, frame), T.decode),
    limitLine(budget, T),
    limitLine(total, T),
  ];
  summary = `At most ${most} tokens in a step; budget ${budget.now ?? "unlimited"}; ` +
    `${prompts.length || "no"} steps with prompt tokens in view.`;
  return { traces, layout, empty: !bars.length };
}

/* Steps of the window, oldest first, the narrow ones merged: {x0, x1 (s), prompt, decode}. */
function collect({ window, width }) {
  const { steps } = store, bars = [];
  const least = (LEAST_PX * (window.x1 - window.x0)) / width / 1000;
  let open = null;
  for (let i = steps.end - 1; i >= steps.first; i--) { // newest first: the time before the window is never looked at
    const row = i & steps.mask, x1 = time.x(steps.t1[row]) / 1000;
    if (x1 * 1000 < window.x0) break;
    const x0 = Math.max(window.x0, time.x(steps.t0[row])) / 1000;
    if (x0 * 1000 > window.x1) continue;
    const bar = { x0, x1, prompt: steps.prompt_tokens[row], decode: steps.decode_tokens[row] };
    if (open && open.x1 - bar.x0 < least && open.x0 - bar.x1 < least) {
      if (bar.prompt + bar.decode > open.prompt + open.decode) {
        Object.assign(open, { prompt: bar.prompt, decode: bar.decode });
      }
      open.x0 = bar.x0;
    } else bars.push(open = bar);
  }
  return bars.reverse();
}

/* The outline of bars; neighbours of no distance share an edge, others come down to zero between. */
function outline(bars, height, gapPx, { window, width }) {
  const pixel = (window.x1 - window.x0) / width / 1000, x = [], y = [];
  const put = (at, tokens) => {
    x.push(at);
    y.push(tokens);
  };
  bars.forEach((bar, i) => {
    const next = bars[i + 1], v = height(bar);
    const gap = gapPx && bar.x1 - bar.x0 > 2 * pixel ? gapPx * pixel : 0;
    const end = Math.max(bar.x0 + pixel * 0.7, bar.x1 - gap);
    const joined = !gap && next && next.x0 - end < 0.6 * pixel;
    if (!i || y[y.length - 1] === 0) put(bar.x0, 0);
    put(bar.x0, v);
    put(joined ? next.x0 : end, v);
    if (!joined) put(end, 0);
  });
  return [x, y];
}

// ---- budget ---------------------------------------------------------------------------------------------
/* A knob's value over the window, from its value now backwards through its changes: {now, xs (ms), ys}; null is
 * unlimited. */
function limit(name, { x0, x1 }) {
  const xs = [x1], ys = [], now = store.knobs[name] ?? null;
  let value = now;
  for (let i = store.marks.length - 1; i >= 0; i--) {
    const mark = store.marks[i], change = mark.changes[name], x = change && time.x(mark.t);
    if (!change) continue;
    if (x < x0) break;
    if (x < x1) {
      ys.push(change[1], change[1]);
      xs.push(x, x);
    }
    value = change[0];
  }
  ys.push(value, value);
  xs.push(x0);
  return { now, xs: xs.reverse(), ys: ys.reverse() };
}

/* The same line on top of each bar's decode tokens. */
function overDecode(line, bars, { window, width }) {
  const pixel = (window.x1 - window.x0) / width, xs = [], ys = [];
  const put = (x0, x1, y) => {
    xs.push(x0, x1);
    ys.push(y, y);
  };
  for (let k = 0; k + 1 < line.xs.length; k += 2) {
    const to = line.xs[k + 1], budget = line.ys[k];
    let x = line.xs[k];
    if (budget === null) {
      put(x, to, null);
      continue;
    }
    for (const bar of bars) {
      const from = Math.max(bar.x0 * 1000, x), until = Math.min(bar.x1 * 1000, to);
      if (until <= from) continue;
      if (from - x > 3 * pixel) put(x, from, budget); // nothing is decoded here
      put(from, until, budget + bar.decode);
      x = until;
    }
    const busy = to === window.x1 && store.open.size > 0; // its newest step has not ended yet
    if ((to - x > 3 * pixel && !busy) || !xs.length) put(x, to, budget);
    else put(x, to, ys[ys.length - 1]);
  }
  return { now: line.now, xs, ys };
}

/* The values that stood for a while: those that a slider only passed through do not stretch the axis. */
function lasting({ now, xs, ys }) {
  const long = ys.filter((_, k) => xs[k - (k % 2) + 1] - xs[k - (k % 2)] > PASSED_MS);
  return now === null ? long : [...long, ys[ys.length - 1]];
}

const limitLine = ({ xs, ys }, T) =>
  lineTrace(xs.map((x) => x / 1000), ys, { color: T.rose, width: 1.25, dash: "4px,3px" });

function label(layout, { now, ys }, name, yaxis, { T, height }) {
  const max = yaxis.range[1], at = ys[ys.length - 1], beyond = now === null || at > max;
  const words = now === null ? "∞" : beyond ? `${format.count(now)} ↑` : format.count(now);
  const y = beyond ? max : at;
  const shift = Math.min(0, (1 - y / max) * height - 6) || 0;
  layout.annotations.push(lineLabel(T, y, name, words, T.rose, beyond ? -8 : shift));
}

function yAxis(most, live) {
  const { max, step } = calm(niceAxis(most, 3), live);
  return { range: [0, max], tickmode: "linear", tick0: 0, dtick: step };
}
