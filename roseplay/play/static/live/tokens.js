/* Tokens computed in each step, decode (light) over prompt (dark), and below, the tokens that the lanes got.
 *
 * A bar is as wide as its step lasted, so its area is not its work, but time is true to scale. The dashed rose line is
 * the prefill budget, the limit of a bar's dark part; it steps where the budget was changed. A switch shows how long
 * the steps took instead. */
import { write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { legendBox, legendEntry, legendLine, segmented } from "../shared/legend.js";
import { slowed, slowedIn } from "../shared/past.js";
import { laneOf, store } from "../shared/store.js";
import { time } from "../shared/time.js";
import { calmAxis } from "./axes.js";
import { Chart } from "./chart.js";
import { areaTrace, dotTrace } from "../shared/chart/shapes.js";
import { stepsIn } from "./span.js";
import { collectBars, heightOf, lasting, limit, limitLabel, limitLine, outline } from "./stepbars.js";

const GAP_PX = 0.6; // between bars with prompt tokens
const LEAST = 8, FAR = 4; // a limit that is this many times as high as all bars does not stretch the axis
const WIDTH = "width = time";
const READERS = 0.3, LANES = 4; // of the height; how many lanes fit
const DOT_PX = 2.5, APART_PX = 1.5; // dots that are nearer are one

/* What the chart can show of each step. `draw` returns its drawing and a `summary` for screen readers. */
const VIEWS = {
  tokens: {
    title: "Tokens per step",
    sub: WIDTH,
    axis: calmAxis(3),
    draw: drawTokens,
    legend: [
      legendEntry(legendBox("prompt"), "prompt"),
      legendEntry(legendBox("decode"), "decode"),
      legendEntry(legendLine("rose", 1.25, "4 3"), "budget", "rp-hand rp-roomy"),
    ],
  },
  ms: {
    title: "Time per step",
    sub: "ms",
    axis: calmAxis(3),
    draw: drawTime,
    legend: [legendEntry(legendBox("prompt"), "host"), legendEntry(legendBox("decode"), "device")],
  },
};
let shown = VIEWS.tokens;

export function mount(element) {
  const entries = Object.values(VIEWS).flatMap((view) => view.legend);
  const show = (view) => {
    shown = view;
    for (const entry of entries) entry.hidden = !view.legend.includes(entry);
    panel.rename(view.title);
    write(panel.subtitle, view.sub);
  };
  const views = segmented("figures of a step", Object.keys(VIEWS), (word) => {
    show(VIEWS[word]);
    panel.soon();
  });
  const panel = new Chart(element, {
    name: "tokens",
    every: 2,
    timed: true,
    margin: { l: 38, r: 48, t: 6, b: 18 },
    nothing: "One bar per step: how many tokens it computed.",
    head: [...entries, views],
    draw: (frame) => {
      const before = shown.sub, drawn = shown.draw(frame);
      if (shown.sub !== before) write(panel.subtitle, shown.sub);
      return { ...drawn, summary: `${shown.title}. ${drawn.summary}` };
    },
  });
  show(shown);
  on("step", (step) => write(panel.subtitle, inWords(step) ?? shown.sub));
}

/* The step that is pointed at, in words that replace the subtitle; null if there is none. */
function inWords(step) {
  const { steps } = store, { count, ms } = format, row = step === null ? -1 : store.stepRow(step), i = row & steps.mask;
  if (row < 0) return null;
  const tokens = `${count(steps.prompt_tokens[i])} prompt + ${count(steps.decode_tokens[i])} decode`;
  const drafted = steps.draft_tokens[i], accepted = steps.accepted_tokens[i];
  const drafts = drafted ? ` (${count(accepted)} of ${count(drafted)} draft tokens accepted)` : "";
  return `${tokens}${drafts} in ${ms(steps.t1[i] - steps.t0[i])} ms${slowed(steps.t1[i])}${parts(i)}`;
}

/* Host and device time of a step, that of its masks, and whether it was replayed, if the record has them. */
function parts(i) {
  const { host_ms: host, device_ms: device, mask_ms: took, mask_wait_ms: waited, replayed } = store.steps,
    masks = took[i] ? `, masks ${format.ms(took[i])}, waited for ${format.ms(waited[i])}` : "",
    how = masks + (replayed[i] === null ? "" : replayed[i] ? ", replayed" : ", not replayed");
  return host[i] || device[i] ? ` (host ${format.ms(host[i])}, device ${format.ms(device[i])}${how})` : how;
}

const top = (bars) => bars.reduce((max, bar) => Math.max(max, heightOf(bar)), 0);

function drawTokens(frame) {
  const { window, T } = frame;
  const bars = collectBars(frame, (i) => ({ low: store.steps.prompt_tokens[i], high: store.steps.decode_tokens[i] }));
  const budget = limit("prefill_max_tokens", window), total = limit("step_max_tokens", window);
  const most = top(bars), limits = [...lasting(budget), ...lasting(total)].filter((v) => v !== null && v <= most * FAR);
  const ceiling = bars.length ? Math.max(LEAST, most, ...limits) : budget.now || 512;
  const yaxis = VIEWS.tokens.axis(ceiling, window.live), below = READERS * yaxis.range[1];
  const layout = { yaxis: { ...yaxis, range: [-below, yaxis.range[1]] }, shapes: [], annotations: [] };
  if ((budget.now ?? 0) < (total.now ?? Infinity)) limitLabel(layout, budget, "budget", frame); // else without effect
  if (total.now !== null) limitLabel(layout, total, "step", frame);
  const prompts = bars.filter((bar) => bar.low);
  const traces = [
    areaTrace(...outline(bars, heightOf, 0, frame), T.decode),
    areaTrace(...outline(prompts, (bar) => bar.low, GAP_PX, frame), T.prompt),
    limitLine(budget, T),
    limitLine(total, T),
    ...readerDots(frame, below),
  ];
  const summary = `At most ${most} tokens in a step; budget ${budget.now ?? "unlimited"}; ` +
    `${prompts.length || "no"} steps with prompt tokens in view.${drafts(window)}`;
  return { traces, layout, empty: !bars.length, summary };
}

/* A row for each lane, with a dot for each token that its reader got: a gap is what the reader waited. */
function readerDots({ window, width, T }, below) {
  const { tokens } = store, apart = (APART_PX * (window.x1 - window.x0)) / width, last = [];
  const rows = Array.from({ length: LANES }, () => /** @type {number[]} */ ([]));
  for (let i = tokens.end - 1; i >= tokens.first; i--) {
    const slot = i & tokens.mask, at = time.x(tokens.t[slot]), lane = laneOf(tokens.request_id[slot]) ?? Infinity;
    if (at < window.x0) break;
    if (lane > LANES || at > window.x1 || last[lane] - at < apart) continue;
    last[lane] = at;
    rows[lane - 1].push(at / 1000);
  }
  const height = (row) => (-below * (row + 0.75)) / LANES;
  return rows.map((x, row) => dotTrace(x, x.map(() => height(row)), { color: T.hues[row], size: DOT_PX }));
}

/* How long host and device worked on each step. */
function drawTime(frame) {
  const { window, T } = frame, { steps } = store;
  const all = collectBars(frame, (i) => ({ low: steps.device_ms[i] || 0, high: steps.host_ms[i] || 0 }));
  const bars = all.filter(heightOf), most = top(bars), longest = bars.find((bar) => heightOf(bar) === most);
  const parts = longest && `host ${format.ms(longest.high)}, device ${format.ms(longest.low)}`;
  const summary = longest ? `The longest step took ${format.ms(most)} ms${slowedIn(window)}: ${parts}.` : "No steps.";
  const traces = [
    areaTrace(...outline(bars, heightOf, 0, frame), T.prompt),
    areaTrace(...outline(bars, (bar) => bar.low, 0, frame), T.decode),
  ];
  return { traces, layout: { yaxis: VIEWS.ms.axis(Math.max(1, most), window.live) }, empty: !bars.length, summary };
}

/* How many of the draft tokens in a window were accepted, in words; "" without any. */
function drafts(window) {
  const { steps } = store;
  let drafted = 0, accepted = 0;
  for (const slot of stepsIn(window)) {
    drafted += steps.draft_tokens[slot];
    accepted += steps.accepted_tokens[slot];
  }
  const share = drafted ? `${format.percent((100 * accepted) / drafted, 0)} of drafts right` : "";
  VIEWS.tokens.sub = share || WIDTH;
  return share && ` ${share}.`;
}
