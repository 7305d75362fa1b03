/* The position of a value along an axis, in px, and the round values at which the axis is labelled. */
import { format } from "../format.js";

/** @typedef {((value: number) => number) & {value: (px: number) => number}} Scale px of a value, and the value at px */
/** @typedef {{at: number, words: string}} Tick a labelled place of an axis, in px */

/** A linear scale: values from `low` to `high` are evenly spaced between two places. @returns {Scale} */
export function linear(low, high, from, to) {
  const each = (to - from) / (high - low);
  return Object.assign((value) => from + (value - low) * each, { value: (px) => low + (px - from) / each });
}

/** A logarithmic scale: equal factors are equally far apart, and values below `low` are placed at `low`.
 * @returns {Scale} */
export function logarithmic(low, high, from, to) {
  const place = linear(Math.log(low), Math.log(high), from, to);
  const scale = (value) => place(Math.log(Math.max(low, value)));
  return Object.assign(scale, { value: (px) => Math.exp(place.value(px)) });
}

/** The round values of a logarithmic axis: 1, 2 and 5 times each power of ten, or fewer so that there are at most
 * `most`.
 * @returns {number[]} */
export function logValues(low, high, most) {
  for (const firsts of [[1, 2, 5], [1, 3], [1]]) {
    const values = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const first of firsts) {
        const value = first * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) values.push(+value.toPrecision(3));
      }
    }
    if (values.length <= most || firsts.length === 1) return values;
  }
}

/** Ticks at values; the last one names the unit. @param {(value: number) => number} scale @returns {Tick[]} */
export const ticksAt = (scale, values, unit = "", words = short) =>
  values.map((value, i) => ({
    at: scale(value),
    words: unit && i === values.length - 1 ? `${words(value)} ${unit}` : words(value),
  }));

/** Ticks of an axis from 0 with `parts` parts of `step`. */
export const evenTicks = (scale, parts, step, unit = "") =>
  ticksAt(scale, Array.from({ length: parts + 1 }, (_, i) => i * step), unit, plain);

/** Ticks of an axis of milliseconds from 0, in seconds if it is a second or longer; `more` follows the unit. */
export function evenTimes(scale, parts, step, more = "") {
  const [unit, size] = parts * step < 1000 ? ["ms", 1] : ["s", 1000];
  return evenTicks((value) => scale(value * size), parts, step / size, `${unit}${more}`);
}

/** Ticks at milliseconds of a logarithmic axis: those of a second and more in seconds. */
export function logTimes(scale, values) {
  const unit = values[values.length - 1] < 1000 ? "ms" : "";
  return ticksAt(scale, values, unit, (value) => (value < 1000 ? String(value) : `${value / 1000} s`));
}

/** A value with its thousands separated. */
const plain = (value) => (value >= 1000 ? format.count(value) : String(+value.toPrecision(6)));

/** A value in which 1 000 is 1k. */
const short = (value) => (value >= 1000 && value % 100 === 0 ? `${value / 1000}k` : String(value));
