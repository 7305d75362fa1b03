/* Strips below the KV blocks over time, for a model with recurrent layers: how many of its state slots are in use, and
 * how many states are kept. The height of each strip is the most that its count can become. */
import { store } from "../shared/store.js";
import { annotation, areaTrace, beside } from "../shared/chart/shapes.js";

/** @import { ChartFrame } from "./chart.js" */

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
export function stripSentence(sample) {
  const words = { slots: "state slots are in use", kept: "states are kept" };
  return strips({}).map(({ label, total, count }) => ` ${count(sample)} of ${total} ${words[label]}.`).join("");
}

/**
 * What to draw below a y axis from 0 to `total`: how far down the axis goes, traces and labels.
 * @param {ChartFrame} frame
 * @param {number[]} x of the samples, in seconds
 * @param {Counts[]} samples
 */
export function stateStrips({ T, window, height }, x, samples, total) {
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
