/* Shared by the tables of the Lab: heads, and settings and figures in words. */
import { make } from "../shared/dom.js";
import { format } from "../shared/format.js";

export const valueText = format.value;

/** The head of a table with columns for A and B after the first. */
export function tableHead(first, ...more) {
  const cells = [first, make("i", "rp-ab", "A"), make("i", "rp-ab b", "B"), ...more];
  return make("thead", "", make("tr", "", ...cells.map((inside) => make("th", { scope: "col" }, inside))));
}

/* As in roseplay/formats/text.py: the server's sentences and reports write the same. */

/** A figure with about three digits. */
export function figureText(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return format.count(value);
  return value.toFixed(size >= 10 ? 1 : 2);
}

/** The range of a figure, or "" if its ends look the same. */
export function rangeText(range) {
  const [low, high] = range.map(figureText);
  return range.length < 2 || low === high ? "" : `${low}–${high}`;
}

/** A ratio such as 0.15×. */
export function ratioText(ratio) {
  if (ratio === null) return "–";
  return `${ratio === 0 ? "0" : ratio.toFixed(ratio < 0.1 ? 3 : ratio < 10 ? 2 : 1)}×`;
}
