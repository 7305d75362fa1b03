/* Axes of sweeps and searches: throughput, or the setting's values; and latency on a log scale. */
import { evenTicks, linear, logarithmic, logTimes, logValues, ticksAt } from "page/shared/chart/scale.js";
import { format } from "page/shared/format.js";
import { niceAxis } from "page/shared/numbers.js";
import { plainValue } from "./document.js";

/** @import { Area } from "page/shared/chart/axes.js" */
/** @import { Tick } from "page/shared/chart/scale.js" */
/** @import { Row } from "./document.js" */

/** @typedef {{x: (row: Row) => number, ticks: Tick[]}} Axis `x`: the place of a row */

const rateWords = (rate) => plainValue("rate_per_s", rate);
const PARTS = 4, MOST_TICKS = 8, APART_PX = 34, PAD_PX = 14;

/** Throughput in tokens per second, from 0. @param {Row[]} rows @param {Area} area @returns {Axis} */
export function throughputAxis(rows, area) {
  const of = (row) => row.figures.output_tokens_per_s.median || 0;
  const { max, step } = niceAxis(Math.max(1, ...rows.map(of)) * 1.04, PARTS);
  const place = linear(0, max, area.x0, area.x1);
  return { x: (row) => place(of(row)), ticks: evenTicks(place, PARTS, step, "tok/s") };
}

/** The setting's values on a log scale; null, no limit, is beyond the others. Ticks are powers of two, or the values if
 * each is double the one before.
 * @param {(number | null)[]} values
 * @param {Area} area */
export function valueAxis(values, area, doubles = false) {
  const known = values.filter((value) => value !== null), low = Math.min(...known), high = Math.max(...known, low * 2);
  const end = known.length < values.length ? high * 2 : high;
  const scale = logarithmic(low, end, area.x0 + PAD_PX, area.x1 - PAD_PX), place = (value) => scale(value ?? end);
  const powers = [];
  for (let value = 2 ** Math.ceil(Math.log2(low)); value <= high; value *= 2) powers.push(value);
  const ticks = [...thin(doubles ? known : powers, MOST_TICKS), ...(end > high ? [null] : [])];
  return { x: (row) => place(row.value), place, ticks: ticksAt(place, ticks, "", doubles ? rateWords : format.limit) };
}

/** Evenly spaced values, such as rates. @param {number[]} values @param {Area} area */
export function evenAxis(values, area) {
  const place = linear(0, Math.max(...values, 1) * 1.06, area.x0, area.x1);
  const shown = thin(values, Math.max(1, Math.floor(area.width / APART_PX)));
  const ticks = ticksAt(place, shown, "", rateWords);
  return { x: (row) => place(row.value), place, ticks };
}

/* Every n-th value, so that there are at most `most`. */
function thin(values, most) {
  const every = Math.ceil(values.length / most);
  return values.filter((_, i) => i % every === 0);
}

/** Milliseconds on a log scale, with some margin. @param {number[]} values @param {Area} area */
export function latencyAxis(values, area) {
  const known = values.filter((value) => value > 0), low = Math.min(...known, 1e6) / 1.35;
  const high = Math.max(...known, low * 2) * 1.35, y = logarithmic(low, high, area.y1, area.y0);
  return { y, ticks: logTimes(y, logValues(low, high, Math.max(3, area.height / 26))) };
}
