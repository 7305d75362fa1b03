/* Takes deltas from GET /ui/delta, or from a replay, into the store. Emits "reset" if one begins with a snapshot, then
 * "frame". */
import { emit } from "./events.js";
import { given } from "./given.js";
import { newRequest } from "./records.js";
import { store } from "./store.js";
import { time } from "./time.js";

/** @import { Columns, Frame } from "./records.js" */
/** @import { Delta } from "./types.js" */

const KEEP_MS = 120000; // of view time: finished requests stay this long
const KEEP_REQUESTS = 4096, KEEP_BURSTS = 4, KEEP_MARKS = 256, KEEP_LOADS = 2048;

const FIELDS = Object.keys(newRequest()), PROGRESS = ["computed", "target", "cached", "shared"];

const { steps, tokens, entries, request } = store;
let rows = reader(given.columns);

/** How rows with these columns enter the store. @param {Columns} columns */
function reader(columns) {
  return {
    at: places(columns.steps),
    addStep: steps.filler(columns.steps),
    addEntry: entries.filler(columns.entries),
    addToken: tokens.filler(columns.tokens),
  };
}

/** The index of each column in a row. @param {string[]} names @returns {Record<string, number>} */
export function places(names) {
  return Object.fromEntries(names.map((name, place) => [name, place]));
}

/** @param {Delta} delta */
export function apply(delta) {
  if (delta.reset || delta.boot_id !== store.bootId) reset(delta);
  store.cursor = delta.next;
  time.sync(delta.now);
  for (const frame of delta.frames || []) applyFrame(frame);
  if (delta.reset) countEarlier(delta.snapshot || {});
  if (delta.frames && delta.frames.length) store.version++;
  prune();
  emit("frame", delta);
}

/** @param {Delta} delta */
function reset(delta) {
  const restarted = delta.boot_id !== store.bootId;
  for (const ring of [steps, tokens, entries]) ring.clear();
  store.requests.clear();
  store.bursts.clear();
  store.open.clear();
  store.bootId = delta.boot_id;
  store.version++;
  time.reset();
  const snapshot = delta.snapshot || {};
  rows = reader(snapshot.columns || given.columns);
  store.info = snapshot.info || (restarted ? null : store.info);
  store.absent = snapshot.absent || {};
  store.pace = snapshot.pace || null;
  store.marks.length = store.loads.length = 0;
  if (snapshot.load) takeLoad(snapshot.load);
  store.stats = snapshot.stats || null;
  store.burst = null;
  store.knobs = { ...snapshot.knobs };
  for (const [rid, about] of snapshot.requests || []) {
    const known = request(rid);
    learn(known, about);
    enter(known);
  }
  if (snapshot.burst) takeBurst(snapshot.burst);
  if (snapshot.story) takeStory(snapshot.story);
  emit("reset", delta);
}

/** Take what a snapshot or an event tells of a request. */
function learn(known, about) {
  for (const name of FIELDS) if (Object.hasOwn(about, name)) known[name] = about[name];
}

/* Note a request that has arrived, and is open unless its end is known, too. */
function enter(known) {
  if (known.burst !== null) addToBurst(known);
  if (known.reason === null && known.finished === null) store.open.add(known.rid);
}

/* A snapshot may count preemptions that its frames do not contain, and its frames contain others again. */
function countEarlier(snapshot) {
  for (const [rid, { preemptions = 0 }] of snapshot.requests || []) {
    const known = request(rid);
    known.preemptions = Math.max(preemptions, known.preempted.length);
  }
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
  if (frame.burst) takeBurst(frame.burst);
  if (frame.story) takeStory(frame.story);
  for (const load of frame.loads || []) takeLoad(load);
  if (frame.absent) {
    store.absent = frame.absent;
    emit("absent");
  }
}

/** @param {import("./records.js").BurstFigures} figures of the newest burst */
function takeBurst(figures) {
  const known = store.bursts.get(figures.burst);
  store.burst = figures;
  if (known) known.figures = figures;
}

/** Note which burst one is compared with. @param {import("./types.js").Said} said */
function takeStory({ burst, compared }) {
  const known = store.bursts.get(burst);
  if (known) known.compared = compared;
}

/** @param {import("./types.js").Load} load */
function takeLoad(load) {
  const before = store.loads[store.loads.length - 1];
  if (before && load.t <= before.t) store.loads.length = 0;
  store.loads.push(load);
  if (load.running) time.work(before?.running ? before.t : load.t, load.t); // maybe for other clients
  if (store.loads.length > KEEP_LOADS) store.loads.shift();
}

/** @param {Frame["requests"][number]} event */
function applyEvent([rid, event, t, about = {}]) {
  const known = request(rid);
  known[event] = t;
  learn(known, about);
  time.work(t, t);
  if (event === "submitted") enter(known);
  else if (event === "finished") store.open.delete(rid);
}

function applyStep(row) {
  const { at, addStep } = rows, t0 = row[at.t0], parts = row[at.entries] || [], preempted = row[at.preempted] || [];
  time.work(t0, row[at.t1]);
  const i = addStep(row);
  steps.first_entry[i] = entries.end;
  steps.entry_count[i] = parts.length;
  steps.preempted[i] = preempted.length ? preempted : null;
  for (const part of parts) applyEntry(part, t0);
  for (const rid of preempted) {
    const known = request(rid);
    ran(known, t0);
    known.preempted.push(t0);
    known.preemptions++;
  }
  for (const rid of row[at.copied] || []) request(rid).copied.push(t0);
}

/** @param {any[]} row @param {number} t0 when its step began */
function applyEntry(row, t0) {
  const e = rows.addEntry(row), known = request(entries.request_id[e]);
  for (const name of PROGRESS) known[name] = entries[name][e];
  ran(known, t0);
}

/* End a request's preemption: it was in a step, or preempted again by one before it ran. */
function ran(known, t) {
  if (known.preempted.length > known.resumed.length) known.resumed.push(t);
}

function applyToken(row) {
  const i = rows.addToken(row), t = tokens.t[i], itl = tokens.itl_ms[i], known = request(tokens.request_id[i]);
  time.work(t, t);
  if (known.last !== null && t <= known.last) return; // its snapshot has counted it
  known.last = t;
  if (itl >= 0) known.itl_max = Math.max(known.itl_max ?? 0, itl);
  if (known.finished === null) known.tokens++;
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
