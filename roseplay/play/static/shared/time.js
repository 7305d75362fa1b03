/* The time of the engine and of the views.
 *
 * Views show the last seconds of *work*. While the engine has nothing to do their clock stands still (a burst stays on
 * the screen until something else happens), and when work begins again the idle stretch is cut out and marked. */
import { store } from "./store.js";

const TAIL_MS = 700, LEAD_MS = 300; // what is left of an idle stretch, after and before work
const LEAST_CUT_MS = 500; // shorter stretches are not cut
const LAG_MS = 150; // a frame takes about this long to arrive; views end this much earlier
const JUMP_MS = 1000; // clocks that differ by more are not just drifting
const KEEP_CUTS = 64;

/** @type {{offset: number | null, last: number | null, source: (() => number) | null, stopped: number | null}} */
const state = { offset: null, last: null, source: null, stopped: null };

/** Idle stretches that views leave out; `before`: ms cut out before this one.
 * @type {{from: number, to: number, before: number}[]} */
const cuts = [];
/** @type {number | null} */
let lastWork = null;

export const time = { cuts, sync, follow, stop, stopped, reset, work, idle, x, now };

// ---- engine time ------------------------------------------------------------------------------------------
/** Take the engine's time from a delta. Deltas arrive late by their time on the way, so the largest offset seen is the
 * best one. It may fall slowly, in case the two clocks drift apart. */
function sync(engineNow) {
  if (typeof engineNow !== "number" || state.source) return;
  const offset = engineNow - performance.now();
  if (state.offset === null || offset > state.offset || state.offset - offset > JUMP_MS) state.offset = offset;
  else state.offset += (offset - state.offset) * 0.02;
}

/** Use `source` as the clock from now on, as in a replay; null returns to the server's time. */
function follow(source) {
  state.source = source;
  state.offset = state.last = null;
}

/** Stop the clock while the engine does not answer. */
function stop(held) {
  if (held !== (state.stopped !== null)) state.stopped = held ? clock() : null;
}

function stopped() {
  return state.stopped !== null;
}

/** The engine's now in ms, running smoothly between polls. */
export function clock() {
  if (state.stopped !== null) return state.stopped;
  if (state.source) return state.source();
  if (state.offset === null) return 0;
  const now = performance.now() + state.offset;
  state.last = state.last === null || state.last - now > JUMP_MS ? now : Math.max(state.last, now);
  return state.last;
}

// ---- view time --------------------------------------------------------------------------------------------
function reset() {
  state.offset = state.last = lastWork = null;
  cuts.length = 0;
}

/** Note that there was work from `from` to `to`. */
function work(from, to) {
  const idleFrom = lastWork + TAIL_MS, idleTo = from - LEAD_MS;
  if (lastWork !== null && idleTo > idleFrom + LEAST_CUT_MS && !openAt(idleFrom)) {
    const previous = cuts[cuts.length - 1];
    cuts.push({ from: idleFrom, to: idleTo, before: previous ? previous.before + previous.to - previous.from : 0 });
    if (cuts.length > KEEP_CUTS) cuts.shift();
  }
  lastWork = lastWork === null ? to : Math.max(lastWork, to);
}

/* A long pause while a request waits is not idle time: it is a stall, and must be visible. */
function openAt(t) {
  for (const { submitted, finished } of store.requests.values()) {
    if (submitted !== null && submitted <= t && (finished === null || finished > t)) return true;
  }
  return false;
}

/** Whether the views stand still. */
function idle() {
  return standsStill() && clock() - LAG_MS > lastWork + TAIL_MS;
}

const standsStill = () => lastWork !== null && store.open.size === 0;

/** Engine time to view time, both in ms. */
function x(t) {
  if (standsStill()) t = Math.min(t, lastWork + TAIL_MS);
  for (let i = cuts.length - 1; i >= 0; i--) {
    const cut = cuts[i];
    if (t >= cut.to) return t - cut.before - (cut.to - cut.from);
    if (t >= cut.from) return cut.from - cut.before;
  }
  return t - (cuts.length ? cuts[0].before : 0);
}

/** The view time at the right edge of every view. */
function now() {
  return x(clock() - LAG_MS);
}
