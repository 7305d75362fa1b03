/* What the tables of the Lab share: heads, settings and figures in words. */
import { make } from "../shared/dom.js";
import { format } from "../shared/format.js";

export const valueText = format.value;

/** The head of a table with a column for A and one for B behind the first. */
export function tableHead(first, ...more) {
  const cells = [first, make("i", "rp-ab", "A"), make("i", "rp-ab b", "B"), ...more];
  return make("thead", "", make("tr", "", ...cells.map((inside) => make("th", { scope: "col" }, inside))));
}

/** A figure with about three digits. */
export function figureText(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return format.count(value);
  return value.toFixed(size >= 10 ? 1 : 2);
}
