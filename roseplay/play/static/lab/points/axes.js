/* Axes of sweeps and searches: throughput, or the setting's value by equal factors; and latency by equal factors. */
import { format } from "../../shared/format.js";
import { niceAxis } from "../../shared/numbers.js";
import { sharp } from "../../shared/pen.js";
import { drawLevel, logTicks, short } from "../draw.js";

/** @import { Pen } from "../../shared/pen.js" */
/** @import { Palette } from "../../shared/theme.js" */
/** @import { Area } from "../view.js" */
/** @import { Row } from "./document.js" */

/**
 * @typedef {object} Axis
 * @property {(row: Row) => number} x the place of a row
 * @property {[number, string][]} ticks places and their words
 */

const PARTS = 4, MOST_TICKS = 8, APART_PX = 34;

/** Throughput in tokens a second, from 0. @param {Row[]} rows @param {Area} area @returns {Axis} */
export function throughputAxis(rows, area) {
  const of = (row) => row.figures.output_tokens_per_s.median || 0;
  const { max, step } = niceAxis(Math.max(1, ...rows.map(of)) * 1.04, PARTS);
  const place = (value) => area.x0 + (value / max) * area.width;
  const ticks = Array.from({ length: PARTS + 1 }, (_, i) => i * step);
  const words = (value) => (value === max ? `${format.count(value)} tok/s` : format.count(value));
  return { x: (row) => place(of(row)), ticks: ticks.map((value) => [place(value), words(value)]) };
}

/** The setting's values by equal factors, with powers of two as ticks. @param {number[]} values @param {Area} area */
export function valueAxis(values, area) {
  const low = Math.min(...values), high = Math.max(...values, low * 2), pad = 14;
  const place = (value) => {
    const share = Math.log((value ?? high) / low) / Math.log(high / low);
    return area.x0 + pad + share * (area.width - 2 * pad);
  };
  const powers = [];
  for (let value = 2 ** Math.ceil(Math.log2(low)); value <= high; value *= 2) powers.push(value);
  const every = Math.ceil(powers.length / MOST_TICKS);
  const ticks = powers.filter((_, i) => i % every === 0).map((value) => [place(value), format.count(value)]);
  return { x: (row) => place(row.value), place, ticks: /** @type {[number, string][]} */ (ticks) };
}

/** Evenly spaced values, such as rates. @param {number[]} values @param {Area} area */
export function evenAxis(values, area) {
  const low = 0, high = Math.max(...values, 1) * 1.06;
  const place = (value) => area.x0 + ((value - low) / (high - low)) * area.width;
  const every = Math.ceil(values.length / Math.max(1, Math.floor(area.width / APART_PX)));
  const ticks = values.filter((_, i) => i % every === 0).map((value) => [place(value), String(+value.toPrecision(3))]);
  return { x: (row) => place(row.value), place, ticks: /** @type {[number, string][]} */ (ticks) };
}

/**
 * Milliseconds by equal factors, with room around.
 * @param {number[]} values
 * @param {Area} area
 */
export function latencyAxis(values, area) {
  const known = values.filter((value) => value > 0), low = Math.min(...known, 1e6) / 1.35;
  const high = Math.max(...known, low * 2) * 1.35;
  const y = (value) => area.y1 - (Math.log(Math.max(low, value) / low) / Math.log(high / low)) * area.height;
  return { y, ticks: logTicks(low, high, Math.max(3, area.height / 26)) };
}

/**
 * Lines and words of both axes; returns nothing.
 * @param {Pen} pen
 * @param {Area} area
 * @param {Axis["ticks"]} xs
 * @param {{y: (value: number) => number, ticks: number[]}} ys
 * @param {Palette} T
 */
export function drawAxes(pen, area, xs, { y, ticks }, T) {
  for (const value of ticks) drawLevel(pen, area, y(value), short(value), T);
  for (const [x, words] of xs) {
    pen.line(sharp(x), area.y0, sharp(x), area.y1, T.grid);
    const end = x > area.x1 - 24;
    pen.text(words, end ? Math.min(x + 18, area.x1 + 12) : x, area.y1 + 13, T.ink3, end ? "right" : "center");
  }
  pen.line(area.x0, sharp(area.y1), area.x1, sharp(area.y1), T.line2);
}
