/* What the tables of the Lab share: heads, settings and figures in words. */
import { make } from "../shared/dom.js";
import { format } from "../shared/format.js";

/** A setting's value in words. */
export function valueText(value) {
  if (value === null || value === undefined) return "∞";
  return value === true ? "on" : value === false ? "off" : String(value);
}

/** The head of a table with a column for A and one for B behind the first. */
export function tableHead(first, ...more) {
  const cells = [first, make("i", "rp-ab", "A"), make("i", "rp-ab b", "B"), ...more].map((inside) =>
    make("th", "", inside)
  );
  for (const cell of cells) cell.scope = "col";
  return make("thead", "", make("tr", "", ...cells));
}

/** A figure with about three digits. */
export function figureText(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return format.count(value);
  return value.toFixed(size >= 10 ? 1 : 2);
}
