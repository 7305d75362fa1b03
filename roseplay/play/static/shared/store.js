/* Everything that the page remembers about the engine. `reduce.js` fills it; views read it.
 *
 * All times are in milliseconds on the engine's clock since it started; time.js has the current time, and maps times to
 * those of views. */
import { firstWhere } from "./numbers.js";
import { ENTRIES, newRequest, STEPS, TOKENS } from "./records.js";

/** Rows of typed columns, numbered from 0 without end; row i is in slot i & mask. Rows before `first` are
 * overwritten. */
class Ring {
  constructor(capacity, columns) {
    this.capacity = capacity;
    this.mask = capacity - 1;
    this.end = 0;
    this.names = Object.keys(columns);
    for (const [name, Kind] of Object.entries(columns)) this[name] = new Kind(capacity);
  }

  get first() {
    return Math.max(0, this.end - this.capacity);
  }

  get size() {
    return this.end - this.first;
  }

  /** The slot of a new row; the caller fills its columns. */
  push() {
    return this.end++ & this.mask;
  }

  /** A function that adds a row, given as a list with these columns, and returns its slot. Missing numbers are 0, or
   * NaN in a column of fractions; other missing values are null. */
  filler(names) {
    const columns = this.names.map((name) => ({
      column: this[name],
      k: names.indexOf(name),
      missing: ArrayBuffer.isView(this[name]) ? NaN : null,
    }));
    return (row) => {
      const slot = this.push();
      for (const { column, k, missing } of columns) column[slot] = row[k] ?? missing;
      return slot;
    };
  }

  clear() {
    this.end = 0;
  }

  /** The first row whose `column` is at least `value`; the column must not fall. @param {ArrayLike<number>} column */
  lowerBound(column, value) {
    return firstWhere(this.first, this.end, (i) => column[i & this.mask] >= value);
  }
}

/** @template {Record<string, new (size: number) => any>} C
 * @param {number} capacity a power of two
 * @param {C} columns
 * @returns {Ring & {[K in keyof C]: InstanceType<C[K]>}} */
const ring = (capacity, columns) => /** @type {any} */ (new Ring(capacity, columns));

const tokens = ring(1 << 16, TOKENS);

const steps = ring(1 << 14, {
  ...STEPS,
  first_entry: Float64Array, // its entries are `entry_count` rows from here on
  entry_count: Int32Array,
  preempted: Array, // requests, or null
});

const entries = ring(1 << 18, ENTRIES);

/** @import { BurstFigures, RequestRecord } from "./records.js" */
/** A request, and the times at which it was preempted, ran again, and copied a block before it wrote to it.
 * @typedef {RequestRecord & Record<"preempted" | "resumed" | "copied", number[]> & {rid: number}} Request */

/** With the server's figures, and the earlier burst with which it is compared.
 * @typedef {{id: number, t: number, requests: Request[], figures?: BurstFigures, compared?: number}} Burst */

/** @returns {Request} */
const unknown = (rid) => ({ rid, ...newRequest(), preempted: [], resumed: [], copied: [] });

export const store = {
  steps,
  tokens,
  entries,
  /** @type {Map<number, Request>} finished ones go once no view can reach them */
  requests: new Map(),
  /** @type {Map<number, Burst>} the last few, kept longer than the requests */
  bursts: new Map(),
  /** @type {BurstFigures | null} the server's figures of the newest burst */
  burst: null,
  /** @type {Record<string, any>} */
  knobs: {},
  /** @type {{t: number, step: number, changes: Record<string, [any, any]>}[]} each change of the knobs */
  marks: [],
  /** @type {import("./records.js").Stats | null} */
  stats: null,
  /** @type {import("./records.js").Info | null} */
  info: null,
  /** @type {Record<string, string>} what another server does not report, with the reasons */
  absent: {},
  /** @type {import("./types.js").Pace | null} */
  pace: null,
  /** @type {import("./types.js").Load[]} what another server said of its load, oldest first */
  loads: [],
  /** @type {string | null} */
  bootId: null,
  cursor: 0,
  version: 0, // rises with every change
  /** @type {Set<number>} requests that have not finished */
  open: new Set(),
  stepRow,
  entriesOf,
  request,
};

/** The ring row of a step, or -1 when it is not (or no longer) there. */
function stepRow(step) {
  const row = steps.lowerBound(steps.step_id, step);
  return row < steps.end && steps.step_id[row & steps.mask] === step ? row : -1;
}

/** The kept entries of the step in this slot. */
function entriesOf(slot) {
  const list = [];
  for (let k = 0, e = steps.first_entry[slot]; k < steps.entry_count[slot]; k++, e++) {
    if (e < entries.first) continue;
    const { request_id, prompt_tokens, decode_tokens } = entries, at = e & entries.mask;
    list.push({ rid: request_id[at], prompt_tokens: prompt_tokens[at], decode_tokens: decode_tokens[at] });
  }
  return list;
}

/** What is known about a request; created when it is first mentioned. */
function request(rid) {
  if (!store.requests.has(rid)) store.requests.set(rid, unknown(rid));
  return store.requests.get(rid);
}

/** The lane that a request answers in, or null. */
export const laneOf = (rid) => store.requests.get(rid)?.lane ?? null;

/** "#7", and its lane where it has one: "#7 lane 2". */
export const requestName = (rid) => `#${rid}${laneOf(rid) === null ? "" : ` lane ${laneOf(rid)}`}`;

/** A request's token in a step, the first if there are several: when it came, the gap before it (NaN: the answer's
 * first), the one that was usual then (NaN: unknown) and, if it was late, why; undefined: there is none. */
export function tokenOf(rid, step) {
  const { tokens } = store;
  for (let i = tokens.lowerBound(tokens.step_id, step); i < tokens.end; i++) {
    const slot = i & tokens.mask;
    if (tokens.step_id[slot] !== step) break;
    if (tokens.request_id[slot] === rid) {
      const { t, itl_ms, usual_ms, cause } = tokens;
      return { t: t[slot], itl: itl_ms[slot], usual: usual_ms[slot], cause: cause[slot] };
    }
  }
}
