/* What the stage shows: one step, with the requests that wait beside it. Steps follow each other faster than the eye
 * can: of those that have ended since the last one was shown, it is the slowest, and stays for as long as it took. */
import { blocks } from "../shared/blocks.js";
import { laneOf, store } from "../shared/store.js";

/** @typedef {{rid: number, lane: number | null}} Who a request and its lane
 * @typedef {Who & {prompt: number, decode: number}} Part what a step computes of a request, in tokens
 * @typedef {Who & {tokens: number}} Ticket a request that waits, and the length of its prompt
 * @typedef {{kind: number, rid: number, count: number, block: number}} Run KV blocks of a kind, and of one request
 *   unless that is -1; the number of the first one */

/** @typedef {object} Scene
 * @property {number} step
 * @property {number} t0 when the step began
 * @property {number} t1 when it ended
 * @property {Part[]} parts in the order in which they were scheduled
 * @property {Ticket[]} waiting still, when it ended
 * @property {Run[]} kv */

const SLOW_MS = 60, LEAST_MS = 250, MOST_MS = 1500; // a step that takes longer than SLOW_MS stays for a while

/** @returns {Who} */
const who = (rid) => ({ rid, lane: laneOf(rid) });

/** The scene of the step in a ring slot. @param {number} slot @returns {Scene} */
export function sceneOf(slot) {
  const { steps } = store, t1 = steps.t1[slot];
  const parts = store.entriesOf(slot).map((entry) => ({
    ...who(entry.rid),
    prompt: entry.prompt_tokens,
    decode: entry.decode_tokens,
  }));
  return { step: steps.step_id[slot], t0: steps.t0[slot], t1, parts, waiting: waitingAt(t1), kv: blockRuns() };
}

/** Requests that wait at a time of the engine, as they came. @param {number} t @returns {Ticket[]} */
export function waitingAt(t) {
  const before = (times) => times.filter((time) => time <= t).length;
  const waits = ({ submitted, scheduled, finished, preempted, resumed }) =>
    submitted !== null && submitted <= t && (finished === null || finished > t) &&
    (scheduled === null || scheduled > t || before(preempted) > before(resumed));
  return [...store.requests.values()].filter(waits)
    .map((known) => ({ ...who(known.rid), tokens: known.target || known.prompt_tokens }));
}

/** How many tokens of prompts a scene's step computes. @param {Scene} scene */
export const promptTokens = ({ parts }) => parts.reduce((sum, { prompt }) => sum + prompt, 0);

/* The KV blocks by their kind and owner: shared ones first, then those of each request, cached ones, free ones. */
function blockRuns() {
  /** @type {Map<number, Run>} by kind and owner */
  const runs = new Map();
  for (let block = 1; block <= blocks.total; block++) {
    const kind = blocks.kind(block),
      rid = kind === blocks.ACTIVE ? blocks.owner[block] : -1,
      key = kind * 2 ** 32 + rid;
    const run = runs.get(key);
    if (run) run.count++;
    else runs.set(key, { kind, rid, count: 1, block });
  }
  return [...runs.values()].sort((a, b) => b.kind - a.kind || a.block - b.block);
}

/** Chooses the step to show, of those that have ended. */
export class Pace {
  constructor() {
    this.last = -1; // the newest step that has been considered
    this.until = 0; // when the one that is shown may go
  }

  /** The step to show from now on, or null to go on with the one that is shown.
   * @template {{step: number, took: number}} T
   * @param {() => T[]} ended the newest steps, in any order
   * @param {number} now in ms
   * @returns {T | null} */
  next(ended, now) {
    if (now < this.until) return null;
    const fresh = ended().filter(({ step }) => step > this.last);
    if (!fresh.length) return null;
    const slowest = fresh.reduce((best, one) => (one.took > best.took ? one : best));
    this.last = Math.max(...fresh.map(({ step }) => step));
    this.until = slowest.took < SLOW_MS ? now : now + Math.min(MOST_MS, Math.max(LEAST_MS, slowest.took));
    return slowest;
  }
}
