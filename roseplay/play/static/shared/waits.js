/* What a request waits for before its first token, and what it has waited for. */
import { on } from "./events.js";
import { format } from "./format.js";
import { store } from "./store.js";

/** @import { Request } from "./store.js" */

/** The parts of a time to first token, in the order of `ttft_parts`. */
export const COMPUTING = "computing";
const PARTS = ["in line", "for blocks", "for budget", COMPUTING];
const LEAST_MS = 0.5; // shorter parts are left out

/** @param {Request} known */
export const isOver = (known) => known.finished !== null || known.reason !== null;
/** @param {Request} known */
export const isPreempted = (known) => known.preempted.length > known.resumed.length;
/** @param {Request} known */
export const isWaiting = (known) =>
  !isOver(known) && (isPreempted(known) || (known.scheduled === null && !known.computed && known.first === null));

/** The parts of a request's time to first token that matter, each in ms with its words.
 * @param {Request} known
 * @returns {{words: string, ms: number}[]} */
export function partsOf(known) {
  return (known.ttft_parts || []).map((ms, i) => ({ words: PARTS[i], ms })).filter(({ ms }) => ms >= LEAST_MS);
}

/** The same as one text, such as "12 in line · 90 computing". @param {Request} known */
export const partsText = (known) => partsOf(known).map(({ words, ms }) => `${format.count(ms)} ${words}`).join(" · ");

/* When a preempted request first entered the batch; beyond all times for one that never has. */
const first = (known) => (isPreempted(known) && known.scheduled !== null ? known.scheduled : Number.MAX_VALUE);

/** The places in line of the waiting requests, by id; null after news, until someone asks. */
let places = null;
on("frame", () => (places = null));

/** A request's place in the queue, from 1, or null if it does not wait or the order is unknown, as under scheduling
 * policies. Preempted requests enter first, in the order in which they first did, then others in order of submission.
 * @returns {number | null} */
function placeInLine(rid) {
  if (store.absent.steps || (store.knobs.scheduling_policy || "fcfs") !== "fcfs") return null;
  if (!places) {
    const waiting = [...store.open].map((id) => store.requests.get(id)).filter((known) => known && isWaiting(known));
    waiting.sort((a, b) => first(a) - first(b) || a.rid - b.rid);
    places = new Map(waiting.map((known, i) => [known.rid, i + 1]));
  }
  return places.get(rid) ?? null;
}

/** The same as words, such as "3rd in line", or "". @param {number} rid */
export function lineText(rid) {
  const place = placeInLine(rid);
  return place === null ? "" : `${format.ordinal(place)} in line`;
}
