/* The contents of the table of requests: its columns, their order, the requests that it shows, its rows, with the
 * details below them on a phone, where most columns do not fit, and the same as CSV. */
import { format } from "../shared/format.js";
import { factors } from "../shared/past.js";
import { store } from "../shared/store.js";
import { isOver, isPreempted, isWaiting, lineText, partsText } from "../shared/waits.js";
import { make, set, write } from "../shared/dom.js";
import { cachedButton, factList, factRow } from "../shared/popover.js";
import { hueOf } from "../shared/theme.js";

/** @import { Request } from "../shared/types.js" */

/** `value` is to sort by, null if there is none yet; `words`: it holds words, not figures.
 * @typedef {{name: string, title: string, meaning: string, value: (known: Request) => number | string | null,
 *   show: (known: Request) => string, words?: boolean}} Column */

const ENDS = { abort: "stopped", error: "error" };
const SOURCES = { steady: "steady", own: "own file" };
const NONE = "–", ZERO = "·";
const PARTS_IN_WORDS = "waiting in line, for KV blocks, for prefill budget; computing";
const REASONS_IN_WORDS = "stop (by the model), length (its limit of new tokens), abort or error";

/** @param {Request} known */
function stateOf(known) {
  if (isOver(known)) return ENDS[known.reason] || "done";
  if (isPreempted(known)) return "preempted";
  if (isWaiting(known)) return store.absent.steps ? "waiting" : "queued"; // another server may compute its prompt
  return known.first === null ? "prefill" : "decode";
}

/** The factors of slow motion from its submission on. @param {Request} known */
const factorsOf = ({ submitted, finished }) => factors(submitted, finished ?? Infinity);

/** Where a request came from, in words. @param {Request} known */
function sourceOf(known) {
  if (known.lane !== null) return `lane ${known.lane}`;
  return known.burst !== null ? `burst ${known.burst}` : SOURCES[known.kind] || "program";
}

/** Mean time per token after the first, in ms; null for fewer than two. @param {Request} known */
const tpot = ({ first, last, tokens }) =>
  tokens < 2 || first === null || last === null ? null : (last - first) / (tokens - 1);

const some = (n) => (n === null ? NONE : n ? format.count(n) : ZERO);
const whole = (ms) => (ms === null ? NONE : format.count(ms));
const waits = (known) => (known.scheduled === null && !known.computed && !store.absent.steps ? null : known.queue_ms);
/** ms of its TTFT in which no step worked on it. @param {Request} known */
const idle = (known) => known.ttft_parts && known.ttft_ms - known.ttft_parts[known.ttft_parts.length - 1];
const ifCounted = (tokens) => (store.absent.cached_tokens ? null : tokens);
const reused = (known) => ifCounted(known.cached + known.shared);
const preemptions = (known) => (store.absent.steps ? null : known.preemptions);

/** @param {Column["value"]} value @param {(value: any) => string} show @returns {Column} */
function figure(name, meaning, value, show, title = name) {
  return { name, title, meaning, value, show: (known) => show(value(known)) };
}

/** @param {Column["value"]} value @returns {Column} */
const words = (name, meaning, value) => ({ ...figure(name, meaning, value, (v) => v ?? ""), words: true });

export const COLUMNS = [
  figure("id", "Its number.", ({ rid }) => rid, String),
  words("source", "Who sent it: a lane, a burst, steady traffic, a file of your own, or a program.", sourceOf),
  {
    ...words("state", "What it is doing, and the slow motion in which its times were measured.", stateOf),
    show: (known) => stateOf(known) + format.slowed(factorsOf(known)),
  },
  figure("prompt", "Prompt tokens.", ({ prompt_tokens: prompt }) => prompt, format.count),
  figure("cached", "Prompt tokens that it did not have to compute: cached, or shared in a step.", reused, some),
  figure("answer", "Tokens generated so far.", ({ tokens }) => tokens, some),
  {
    ...figure("queue", "From submit to the first step that works on it, ms; before, its place.", waits, whole),
    show: (known) => lineText(known.rid) || whole(waits(known)),
  },
  figure("ttft", "Time to first token, ms.", ({ ttft_ms: ttft }) => ttft, whole, "TTFT"),
  {
    ...words("parts", `What its TTFT consists of, from left: ${PARTS_IN_WORDS}.`, idle),
    title: "TTFT by cause",
    show: partsText,
  },
  figure("tpot", "Mean time per token after the first, ms.", tpot, (v) => (v === null ? NONE : v.toFixed(1)), "TPOT"),
  figure("worst", "The longest time between two of its tokens, ms.", ({ itl_max: worst }) => worst, whole, "worst gap"),
  figure("preempt", "How often it lost its blocks to another request.", preemptions, some, "preempt."),
  words("finish", `Why it ended: ${REASONS_IN_WORDS}.`, ({ reason }) => reason),
];

export const FILTERS = { all: () => true, live: (known) => !isOver(known), waiting: isWaiting, done: isOver };

/** @typedef {{column: string, down: boolean}} Order */

/** The requests that pass a filter, in an order; those without a value come last in either direction, and the newest of
 * equal ones first.
 * @param {keyof typeof FILTERS} filter
 * @param {Order} order
 * @param {(known: Request) => boolean} seen */
export function listed(filter, { column, down }, seen) {
  const { value } = COLUMNS.find(({ name }) => name === column), keyed = [];
  for (const known of store.requests.values()) { // without a time of submission, nobody has said yet who it is
    if (known.submitted !== null && FILTERS[filter](known) && seen(known)) keyed.push({ known, key: value(known) });
  }
  const sign = down ? -1 : 1;
  keyed.sort((a, b) => (compare(a.key, b.key, sign) || b.known.rid - a.known.rid));
  return keyed.map(({ known }) => known);
}

function compare(a, b, sign) {
  if (a === null || b === null) return (a === null ? 1 : 0) - (b === null ? 1 : 0);
  return sign * (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);
}

// ---- as elements -------------------------------------------------------------------------------------------
const ON_PHONES = ["id", "state", "ttft", "worst"]; // the columns that fit there; see requests.css

/** The column whose figure opens the reason for it. */
export const CACHED = COLUMNS.findIndex(({ name }) => name === "cached");
/** The column that shows the parts of a TTFT as a bar. */
const PARTS = COLUMNS.findIndex(({ name }) => name === "parts");
const PART_COLORS = ["line2", "warn", "rosefill", "prompt"];

/** A request's row, empty except for its source; `texts` are the elements for its columns' texts, `key` their contents.
 * @param {Request} known */
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

/** @param {Request} known @param {Column} column */
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

// ---- as a file --------------------------------------------------------------------------------------------
const round = (v) => (typeof v === "number" ? Math.round(v * 100) / 100 : v ?? "");

/** Columns of the same names as in the export of a whole run (recording/tables.py).
 * @type {[string, (known: Request) => any][]} */
const CSV = [
  ["request", ({ rid }) => rid],
  ["kind", ({ kind }) => kind],
  ["lane", ({ lane }) => lane],
  ["burst", ({ burst }) => burst],
  ["state", stateOf],
  ["prompt_tokens", ({ prompt_tokens: prompt }) => prompt],
  ["cached_tokens", ({ cached }) => ifCounted(cached)],
  ["shared_tokens", ({ shared }) => ifCounted(shared)],
  ["tokens", ({ tokens }) => tokens],
  ["queue_ms", waits],
  ["ttft_ms", ({ ttft_ms: ttft }) => ttft],
  ["ttft_queue_ms", ({ ttft_parts: parts }) => parts && parts[0]],
  ["ttft_blocks_ms", ({ ttft_parts: parts }) => parts && parts[1]],
  ["ttft_budget_ms", ({ ttft_parts: parts }) => parts && parts[2]],
  ["ttft_computing_ms", ({ ttft_parts: parts }) => parts && parts[3]],
  ["tpot_ms", tpot],
  ["itl_max_ms", ({ itl_max: worst }) => worst],
  ["preemptions", preemptions],
  ["slow_motion", (known) => factorsOf(known).join(" ")],
  ["reason", ({ reason }) => reason],
  ["device", () => store.info?.device],
];

/** Requests as CSV, without texts of prompts or answers. @param {Request[]} list */
export function asCsv(list) {
  const lines = list.map((known) => CSV.map(([, value]) => String(round(value(known)))).join(","));
  return [CSV.map(([name]) => name).join(","), ...lines, ""].join("\r\n");
}
