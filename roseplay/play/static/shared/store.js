/* Everything that the page remembers about the engine. `reduce.js` fills it; views read it.
 *
 * All times are in milliseconds on the engine's clock since it started; time.js has the current time, and maps times to
 * those of views. */
import { firstWhere } from "./numbers.js";

/**
 * Rows of typed columns, numbered from 0 without end; row i is in slot i & mask. Rows before `first` are overwritten.
 */
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

  /**
   * A function that adds a row, given as a list with these columns, and returns its slot. Only numbers are copied:
   * missing ones are 0, or NaN in a column of fractions.
   * @param {string[]} names
   */
  filler(names) {
    const columns = this.names.filter((name) => ArrayBuffer.isView(this[name]))
      .map((name) => ({ column: this[name], k: names.indexOf(name) }));
    return (row) => {
      const slot = this.push();
      for (const { column, k } of columns) column[slot] = row[k] ?? NaN;
      return slot;
    };
  }

  clear() {
    this.end = 0;
  }

  /**
   * The first row whose `column` is at least `value`; the column must not fall.
   * @param {ArrayLike<number>} column
   * @param {number} value
   */
  lowerBound(column, value) {
    return firstWhere(this.first, this.end, (i) => column[i & this.mask] >= value);
  }
}

const F64 = Float64Array, F32 = Float32Array, I32 = Int32Array;

/**
 * @template {Record<string, new (size: number) => any>} C
 * @param {number} capacity a power of two
 * @param {C} columns
 * @returns {Ring & {[K in keyof C]: InstanceType<C[K]>}}
 */
const ring = (capacity, columns) => /** @type {any} */ (new Ring(capacity, columns));

const tokens = ring(1 << 16, { request_id: I32, step_id: I32, t: F64, itl_ms: F32 }); // itl_ms: NaN for a first
// token, 0 for one that came with the one before

const steps = ring(1 << 14, {
  step_id: I32,
  t0: F64,
  t1: F64,
  prompt_tokens: I32,
  decode_tokens: I32,
  cached_tokens: I32,
  shared_tokens: I32,
  running: I32,
  waiting: I32,
  blocks_free: I32,
  blocks_cached: I32,
  blocks_active: I32,
  blocks_shared: I32,
  device_ms: F32,
  host_ms: F32,
  block_copies: I32,
  graph: Array, // true where it was replayed, false where it ran eagerly, null where that is not known
  limit: Array, // what stopped the next admission or token, or null where that is not known
  state_slots: I32, // that requests have, of a model with recurrent layers
  states_kept: I32,
  recomputed_tokens: I32, // of preempted requests
  swapped_out: I32, // blocks, to host memory
  swapped_in: I32,
  draft_tokens: I32, // of the decode tokens
  accepted_tokens: I32, // of the draft tokens
  first_entry: F64, // its entries are `entry_count` rows from here on
  entry_count: I32,
  preempted: Array, // requests, or null
});

/** A request's part in a step. */
const entries = ring(1 << 18, {
  request_id: I32,
  prompt_tokens: I32,
  decode_tokens: I32,
  computed: I32,
  target: I32,
  cached: I32,
  shared: I32,
});

/**
 * @typedef {object} Request
 * @property {number} rid
 * @property {string} kind
 * @property {number | null} lane
 * @property {number | null} burst
 * @property {number} prompt tokens
 * @property {number | null} submitted
 * @property {number | null} scheduled
 * @property {number | null} first
 * @property {number | null} last when its newest token came
 * @property {number | null} finished
 * @property {number | null} queue ms
 * @property {number[] | null} parts of its TTFT in ms: in line, for blocks, for budget, computing
 * @property {number | null} ttft ms
 * @property {number | null} e2e ms
 * @property {string | null} reason
 * @property {number} tokens generated so far
 * @property {number | null} itl_max ms, its longest gap between two tokens
 * @property {string | null} error
 * @property {number} computed of its prompt
 * @property {number} target
 * @property {number} cached
 * @property {number} shared
 * @property {import("./types.js").Miss | null} miss why not more; known from its first token on
 * @property {number[]} preempted when it was
 * @property {number} preempted_before how often before the first of these
 * @property {number[]} resumed when it ran again
 * @property {number[]} copied when it copied a block before writing
 */

/** @returns {Request} */
const unknown = (rid) => ({
  rid,
  kind: "api",
  lane: null,
  burst: null,
  prompt: 0,
  submitted: null,
  scheduled: null,
  first: null,
  last: null,
  finished: null,
  queue: null,
  parts: null,
  ttft: null,
  e2e: null,
  reason: null,
  tokens: 0,
  itl_max: null,
  error: null,
  computed: 0,
  target: 0,
  cached: 0,
  shared: 0,
  miss: null,
  preempted: [],
  preempted_before: 0,
  resumed: [],
  copied: [],
});

export const store = {
  steps,
  tokens,
  entries,
  /** @type {Map<number, Request>} finished ones go once no view can reach them */
  requests: new Map(),
  /** @type {Map<number, {id: number, t: number, requests: Request[]}>} the last few, kept longer than the requests */
  bursts: new Map(),
  /** @type {Record<string, any>} */
  knobs: {},
  /** @type {{t: number, step: number, changes: Record<string, [any, any]>}[]} each change of the knobs */
  marks: [],
  /** @type {import("./types.js").Stats | null} */
  stats: null,
  /** @type {import("./types.js").Info | null} */
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
