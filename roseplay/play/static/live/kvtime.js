/* What the KV pool's blocks were used for over time.
 *
 * Stacked to the pool's size, or less where only a small part is used: shared by several requests, active (one owner),
 * cached (held by none, still findable), free. A diamond marks a preemption: the pool was full. Below, of a model with
 * recurrent layers, its state slots and kept states. */
import { format } from "../shared/format.js";
import { legendBox, legendEntry } from "../shared/legend.js";
import { store } from "../shared/store.js";
import { time } from "../shared/time.js";
import { annotation, areaTrace, beside, dotTrace } from "../shared/chart/shapes.js";
import { calmAxis } from "./axes.js";
import { Chart } from "./chart.js";

/** @import { ChartFrame } from "./chart.js" */

const LAYERS = [["shared", "shared"], ["ink3", "active"], ["cached", "cached"]]; // colour and words, from the bottom up
const TITLE = "KV blocks over time.", LEAST_SHARE = 0.05, SAMPLE_PX = 1.5, APART_PX = 12;
const LARGE = 1000, SMALL = 0.1; // of that many blocks, a smaller part would be a flat line
const axis = calmAxis(2);

export function mount(element) {
  new Chart(element, {
    name: "kvtime",
    every: 4,
    timed: true,
    small: true,
    margin: { l: 38, r: 12, t: 8, b: 18 },
    nothing: "How much memory is held.",
    head: LAYERS.map(([color, words]) => legendEntry(legendBox(color), words, "rp-roomy")),
    draw,
  });
}

/* A y axis with these ticks, over what is free. */
const layoutOf = (T, range, tickvals, words) => ({
  plot_bgcolor: T.free,
  yaxis: { range, tickmode: "array", tickvals, ticktext: tickvals.map(words), gridcolor: T.line },
  xaxis: { showgrid: false },
});

/* For another server: the share of its KV cache in use, in percent, without knowing what for. */
function drawShare({ window, T }) {
  const layout = layoutOf(T, [0, 100], [0, 50, 100], (v) => format.percent(v));
  const loads = store.loads.filter((load) => load.kv_usage !== null).map((load) => ({ ...load, x: time.x(load.t) }));
  const before = loads.findLastIndex(({ x }) => x < window.x0); // the area begins at the left edge
  const samples = loads.slice(Math.max(0, before)).filter(({ x }) => x <= window.x1);
  if (!samples.length) return { empty: true, layout, summary: `${TITLE} Nothing reported yet.` };
  const newest = samples[samples.length - 1], height = ({ kv_usage: usage }) => 100 * usage;
  const end = store.loads.at(-1).kv_usage === null ? time.x(store.loads.at(-1).t) : time.now(); // else it is not known
  const x = [...samples.map((one) => Math.max(one.x, window.x0) / 1000), Math.min(window.x1, end) / 1000];
  const summary = `${TITLE} ${format.percent(height(newest), 0)} of the KV cache is held.`;
  const area = areaTrace(x, [...samples, newest].map(height), T.ink3, true);
  const preempted = samples.filter((one, i) => i && one.preemptions > samples[i - 1].preemptions).map((one) =>
    one.x / 1000
  );
  return { traces: [area, diamonds(preempted, 97, T)], layout, summary };
}

function draw(frame) {
  if (store.absent.blocks) return drawShare(frame);
  const { window, T } = frame, { samples, preemptions } = collect(frame);
  const total = poolSize(samples), top = height(samples, total, window);
  const x = [...samples.map((one) => one.x), Math.min(window.x1, time.now()) / 1000];
  const newest = samples[samples.length - 1], all = newest ? [...samples, newest] : [];
  const strips = stateStrips(frame, x, all, top);
  const { annotations, low } = strips, axes = layoutOf(T, [low, top], [0, top / 2, top], format.short);
  if (top < total) {
    const words = annotation(T, "pool", `of ${format.count(total)} blocks`, T.ink3);
    annotations.push({ ...words, ...beside(0, false, 4), xref: "paper", y: top, yanchor: "top" });
  }
  const layout = { ...axes, annotations };
  if (newest && newest.shared + newest.active > LEAST_SHARE * total) document.body.classList.add("rp-memory");
  if (!newest) return { empty: true, layout, traces: strips.traces, summary: `${TITLE} No steps in view.` };
  const layer = (height, color) => areaTrace(x, all.map(height), color, true);
  const traces = [
    layer((s) => s.shared + s.active + s.cached, T.cached),
    layer((s) => s.shared + s.active, T.ink3),
    layer((s) => s.shared, T.shared),
    ...strips.traces,
    diamonds(preemptions, top * 0.97, T),
  ];
  const { shared, active, cached, free } = newest;
  const held = `Of ${total} blocks ${shared} are shared, ${active} active, ${cached} cached, ${free} free.`;
  return { traces, layout, summary: `${TITLE} ${held}${stripSentence(newest)}` };
}

const diamonds = (x, y, T) =>
  dotTrace(x, x.map(() => y), { symbol: "diamond", size: 8, color: T.surface, line: { color: T.ink, width: 1 } });

/* Up to where the y axis goes. */
function height(samples, total, window) {
  const most = Math.max(0, ...samples.map(({ shared, active, cached }) => shared + active + cached));
  const { range: [, top] } = axis(Math.max(most, 8), window.live);
  return most && total > LARGE && top < total * SMALL ? top : total;
}

/* Counts after each step of the window, about one sample per pixel (the fullest), oldest first. */
function collect({ window, width }) {
  const { steps } = store, samples = [], preemptions = [];
  const pixel = (window.x1 - window.x0) / width / 1000, least = SAMPLE_PX * pixel;
  for (let i = steps.end - 1; i >= steps.first; i--) {
    const row = i & steps.mask, ms = time.x(steps.t1[row]);
    if (ms > window.x1) continue;
    const before = ms < window.x0; // one more, so that the area begins at the left edge
    const shared = steps.blocks_shared[row], active = steps.blocks_active[row], cached = steps.blocks_cached[row];
    const free = steps.blocks_free[row];
    const sample = { x: Math.max(ms, window.x0) / 1000, shared, active, cached, free, ...stateCounts(row) };
    const close = preemptions[preemptions.length - 1] - sample.x < APART_PX * pixel;
    if (steps.preempted[row] && !before && !close) preemptions.push(sample.x);
    const last = samples[samples.length - 1];
    if (!last || last.x - sample.x >= least || before) samples.push(sample);
    else if (shared + active > last.shared + last.active && samples.length > 1) {
      samples[samples.length - 1] = { ...sample, x: last.x };
    }
    if (before) break;
  }
  return { samples: samples.reverse(), preemptions };
}

const stateCounts = (row) => ({ state_slots: store.steps.state_slots[row], states_kept: store.steps.states_kept[row] });

function poolSize(samples) {
  if (samples.length) {
    const { shared, active, cached, free } = samples[samples.length - 1];
    return shared + active + cached + free;
  }
  const { stats, info } = store;
  return (stats && stats.kv_total) || (info && info.num_blocks - 1) || 1;
}

// ---- states -------------------------------------------------------------------------------------------------
const HIGH = 13, APART = 6, LABEL_APART = 4; // px

/** @typedef {{state_slots: number, states_kept: number}} Counts */
/** @typedef {{label: string, total: number, color: string, count: (sample: Counts) => number}} Strip */

/** @param {Record<string, string>} T @returns {Strip[]} */
function strips(T) {
  const { state_slots: slots = 0, state_snapshots: places = 0 } = store.info || {};
  const all = [
    { label: "slots", total: slots, color: T.ink3, count: (sample) => sample.state_slots },
    { label: "kept", total: slots && places, color: T.cached, count: (sample) => sample.states_kept },
  ];
  return all.filter(({ total }) => total);
}

/** " 3 of 64 state slots are in use. …", or "". @param {Counts} sample */
function stripSentence(sample) {
  const words = { slots: "state slots are in use", kept: "states are kept" };
  return strips({}).map(({ label, total, count }) => ` ${count(sample)} of ${total} ${words[label]}.`).join("");
}

/** What to draw below a y axis from 0 to `total`: how far down the axis goes, traces and labels.
 * @param {ChartFrame} frame
 * @param {number[]} x of the samples, in seconds
 * @param {Counts[]} samples */
function stateStrips({ T, window, height }, x, samples, total) {
  const bands = strips(T), pitch = HIGH + APART, px = total / (height - pitch * bands.length);
  const ends = [window.x0 / 1000, window.x1 / 1000];
  const traces = bands.flatMap(({ color, total, count }, i) => {
    const top = -i * pitch * px, base = top - pitch * px;
    const heights = samples.map((sample) => base + Math.min(1, count(sample) / total) * HIGH * px);
    const gap = areaTrace(ends, [top, top], T.surface, false, base + HIGH * px);
    return [gap, ...(samples.length ? [areaTrace(x, heights, color, true, base)] : [])];
  });
  const annotations = bands.map(({ label }, i) => ({
    ...{ ...annotation(T, "strip", label, T.ink3), bgcolor: null },
    ...{ ...beside(0, true, LABEL_APART), xref: "paper", y: (HIGH / 2 - (i + 1) * pitch) * px, yanchor: "middle" },
  }));
  return { low: -bands.length * pitch * px, traces, annotations };
}
