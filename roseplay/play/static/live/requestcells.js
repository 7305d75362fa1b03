/* A row of the table of requests, and what stands below it on a phone, where most columns have no room. */
import { make, set, write } from "../shared/dom.js";
import { factList, factRow } from "../shared/popover.js";
import { hueOf } from "../shared/theme.js";
import { COLUMNS, sourceOf } from "./requestrows.js";

/** @import { Request } from "../shared/types.js" */

const ON_PHONES = ["id", "state", "ttft", "worst"]; // the columns that have room there; see requests.css

/**
 * A request's row, empty but for its source; `texts` are where its columns' texts go, `key` is what they say.
 * @param {Request} known
 */
export function makeRow(known) {
  const cells = COLUMNS.map(({ name, words }, i) => {
    const cell = make(i ? "td" : "th", `rp-of-${name}${words ? " rp-words" : ""}`);
    return i ? cell : set(cell, { scope: "row" });
  });
  const tr = make("tr", { tabIndex: -1 }, ...cells);
  tr.dataset.rid = String(known.rid);
  cells[1].append(make("i", { "aria-hidden": true }), sourceOf(known));
  const mark = /** @type {HTMLElement} */ (cells[1].firstChild);
  mark.style.setProperty("--hue", `var(--rp-c${hueOf(known.rid)})`);
  if (known.lane !== null) write(mark, String(known.lane));
  return { tr, texts: cells, key: "" };
}

/** @param {Request} known @param {import("./requestrows.js").Column} column */
const fact = (known, { name, title, show }) => ON_PHONES.includes(name) ? null : factRow(title, show(known) || "–");

/** The columns of a request that a phone does not show. @param {Request} known */
export const unfoldedFacts = (known) => factList(...COLUMNS.map((column) => fact(known, column)));
