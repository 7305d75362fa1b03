/* A row of the table of requests, and the details below it on a phone, where most columns do not fit. */
import { make, set, write } from "../shared/dom.js";
import { cachedButton, factList, factRow } from "../shared/popover.js";
import { hueOf } from "../shared/theme.js";
import { partsText } from "../shared/waits.js";
import { COLUMNS, sourceOf } from "./requestrows.js";

/** @import { Request } from "../shared/types.js" */

const ON_PHONES = ["id", "state", "ttft", "worst"]; // the columns that fit there; see requests.css

/** The column whose figure opens the reason for it. */
export const CACHED = COLUMNS.findIndex(({ name }) => name === "cached");
/** The column that shows the parts of a TTFT as a bar. */
const PARTS = COLUMNS.findIndex(({ name }) => name === "parts");
const PART_COLORS = ["line2", "warn", "rosefill", "prompt"];

/**
 * A request's row, empty except for its source; `texts` are the elements for its columns' texts, `key` their contents.
 * @param {Request} known
 */
export function makeRow(known) {
  const cells = COLUMNS.map(({ name, words }, i) => {
    const cell = make(i ? "td" : "th", `rp-of-${name}${words ? " rp-words" : ""}`);
    return i ? cell : set(cell, { scope: "row" });
  });
  const tr = make("tr", { tabIndex: -1 }, ...cells), ask = cachedButton(known.rid, { tabIndex: -1 });
  cells[CACHED].append(ask);
  tr.dataset.rid = String(known.rid);
  const mark = { "aria-hidden": true, style: `--hue: var(--rp-c${hueOf(known.rid)})` };
  cells[1].append(make("i", mark, known.lane === null ? "" : String(known.lane)), sourceOf(known));
  const words = make("span", "rp-said"), inside = { [CACHED]: ask, [PARTS]: words };
  cells[PARTS].append(make("i", { "aria-hidden": true }), words);
  return { tr, texts: cells.map((cell, i) => inside[i] || cell), key: "" };
}

/** Draw the parts of a request's TTFT in its row. @param {Request} known @param {HTMLTableRowElement} tr */
export function showParts(known, tr) {
  const cell = tr.cells[PARTS], total = (known.ttft_parts || []).reduce((sum, ms) => sum + ms, 0);
  let done = 0;
  const stops = (known.ttft_parts || []).map((ms, i) => {
    const from = 100 * done / total, to = 100 * (done += ms) / total;
    return `var(--rp-${PART_COLORS[i]}) ${from}% ${to}%`;
  });
  cell.title = partsText(known);
  /** @type {HTMLElement} */ (cell.firstChild).style.background = stops.length ? `linear-gradient(90deg,${stops})` : "";
}

/** @param {Request} known @param {import("./requestrows.js").Column} column */
function fact(known, { name, title, show }) {
  if (ON_PHONES.includes(name)) return null;
  const text = show(known) || "–";
  if (name !== "cached") return factRow(title, text);
  const button = cachedButton(known.rid, { tabIndex: -1 });
  write(button, text);
  return factRow(title, button);
}

/** The columns of a request that a phone does not show. @param {Request} known */
export const unfoldedFacts = (known) => factList(...COLUMNS.map((column) => fact(known, column)));
