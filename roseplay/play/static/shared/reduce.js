/* Takes deltas of GET /ui/delta, or of a replay, into the store. Emits "reset" where one starts anew, then "frame". */
import { emit } from "./events.js";
import { store } from "./store.js";
import { time } from "./time.js";

/** @import { Delta, EntryRow, Frame, StepRow, TokenRow } from "./types.js" */

const KEEP_MS = 120000; // of view time: finished requests stay this long
const KEEP_REQUESTS = 4096, KEEP_BURSTS = 4, KEEP_MARKS = 256;

const { steps, tokens, entries, request } = store;

/** @param {Delta} delta */
export function apply(delta) {
  if (delta.reset || delta.boot_id !== store.bootId) reset(delta);
  store.cursor = delta.next;
  time.sync(delta.now);
  for (const frame of delta.frames || []) applyFrame(frame);
  if (delta.frames && delta.frames.length) store.version++;
  prune();
  emit("frame", delta);
}

/** @param {Delta} delta */
function reset(delta) {
  const anew = delta.boot_id !== store.bootId;
  for (const ring of [steps, tokens, entries]) ring.clear();
  store.requests.clear();
  store.bursts.clear();
  store.open.clear();
  store.marks.length = 0;
  store.stats = null;
  store.bootId = delta.boot_id;
  store.version++;
  time.reset();
  const snapshot = delta.snapshot || {};
  store.info = snapshot.info || (anew ? null : store.info);
  store.knobs = { ...snapshot.knobs };
  for (const [rid, fields] of snapshot.requests || []) applyFields(rid, fields);
  emit("reset", delta);
}

/* A snapshot's request: the same fields as its events, and the times of those that have happened. */
function applyFields(rid, fields) {
  const known = request(rid);
  for (const [name, value] of Object.entries(fields)) {
    if (name !== "rid" && Object.hasOwn(known, name) && !Array.isArray(known[name])) known[name] = value;
  }
  known.prompt = fields.prompt_tokens ?? known.prompt;
  known.queue = fields.queue_ms ?? known.queue;
  known.ttft = fields.ttft_ms ?? known.ttft;
  known.e2e = fields.e2e_ms ?? known.e2e;
  if (known.reason === null && known.finished === null) store.open.add(rid);
  if (known.burst !== null) addToBurst(known);
}

/** @param {Frame} frame */
function applyFrame(frame) {
  const events = frame.requests || [];
  for (const event of events) if (event[1] === "submitted") applyEvent(event);
  for (const step of frame.steps || []) applyStep(step);
  for (const token of frame.tokens || []) applyToken(token);
  for (const event of events) if (event[1] !== "submitted") applyEvent(event);
  for (const [t, step, changes] of frame.knobs || []) applyKnobs(t, step, changes);
  if (frame.stats) store.stats = frame.stats;
}

/** @param {Frame["requests"][number]} event */
function applyEvent([rid, event, t, more = {}]) {
  const known = request(rid);
  if (event === "submitted") {
    known.submitted = t;
    known.kind = more.kind ?? known.kind;
    known.lane = more.lane ?? null;
    known.burst = more.burst ?? null;
    known.prompt = more.prompt_tokens ?? 0;
    if (known.burst !== null) addToBurst(known);
    time.work(t, t);
    if (known.finished === null) store.open.add(rid);
  } else if (event === "scheduled") {
    known.scheduled = t;
    known.queue = more.queue_ms ?? null;
  } else if (event === "first") {
    known.first = t;
    known.ttft = more.ttft_ms ?? null;
  } else if (event === "finished") {
    known.finished = t;
    known.reason = more.reason ?? null;
    known.tokens = more.tokens ?? known.tokens;
    known.ttft = more.ttft_ms ?? known.ttft;
    known.e2e = more.e2e_ms ?? null;
    known.error = more.error ?? null;
    store.open.delete(rid);
  }
}

/* The first columns of a step's row; what follows them is kept in other ways. */
const STEP_COLUMNS = [
  "step",
  "t0",
  "t1",
  "prompt",
  "decode",
  "cached",
  "shared",
  "running",
  "waiting",
  "free",
  "cachedBlocks",
  "active",
  "sharedBlocks",
  "device",
  "host",
  "copies",
];

/** @param {StepRow} row */
function applyStep(row) {
  const [, t0, t1] = row, [parts, preempted, copied, graph] = /** @type {any[]} */ (row).slice(STEP_COLUMNS.length);
  time.work(t0, t1);
  const i = steps.push();
  STEP_COLUMNS.forEach((name, k) => (steps[name][i] = row[k]));
  steps.graph[i] = graph ?? null;
  steps.entry[i] = entries.end;
  steps.entries[i] = parts.length;
  steps.preempted[i] = preempted && preempted.length ? preempted : null;
  for (const part of parts) applyEntry(part, t0);
  for (const rid of preempted || []) {
    const known = request(rid);
    if (known.preempted.length > known.resumed.length) known.resumed.push(t0); // again before it ran
    known.preempted.push(t0);
  }
  for (const rid of copied || []) request(rid).copied.push(t0);
}

/**
 * @param {EntryRow} row
 * @param {number} t0 when its step began
 */
function applyEntry([rid, prompt, decode, computed, target, cached, shared], t0) {
  const e = entries.push();
  entries.rid[e] = rid;
  entries.prompt[e] = prompt;
  entries.decode[e] = decode;
  entries.computed[e] = computed;
  entries.target[e] = target;
  entries.cached[e] = cached;
  entries.shared[e] = shared;
  const known = request(rid);
  Object.assign(known, { computed, target, cached, shared });
  if (known.preempted.length > known.resumed.length) known.resumed.push(t0);
}

/** @param {TokenRow} row */
function applyToken([rid, t, itl, step]) {
  const i = tokens.push();
  tokens.rid[i] = rid;
  tokens.t[i] = t;
  tokens.itl[i] = itl === null ? NaN : itl;
  tokens.step[i] = step;
}

function applyKnobs(t, step, changes) {
  store.marks.push({ t, step, changes });
  if (store.marks.length > KEEP_MARKS) store.marks.shift();
  for (const [name, [, value]] of Object.entries(changes)) store.knobs[name] = value;
}

function addToBurst(known) {
  let group = store.bursts.get(known.burst);
  if (!group) {
    group = { id: known.burst, t: known.submitted, requests: [] };
    store.bursts.set(known.burst, group);
    while (store.bursts.size > KEEP_BURSTS) store.bursts.delete(Math.min(...store.bursts.keys()));
  }
  if (!group.requests.includes(known)) group.requests.push(known);
}

function prune() {
  const horizon = time.now() - KEEP_MS;
  for (const [rid, known] of store.requests) {
    if (known.finished === null) continue;
    const many = store.requests.size > KEEP_REQUESTS;
    if (many || time.x(known.finished) < horizon) store.requests.delete(rid);
    else break; // they finish roughly in the order in which they came; the next call gets the rest
  }
}
