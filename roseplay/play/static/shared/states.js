/* The content of each slot of a model's recurrent states, from the snapshots and frames that the store takes. Models
 * without recurrent layers have no slots. */
import { on } from "./events.js";
import { store } from "./store.js";

const NOBODY = -1;

const empty = (slots, places) => ({
  slots, // of running requests, numbered 1 … slots
  total: slots + places, // with those of the prefix cache, numbered after them
  request: new Int32Array(slots + places + 1).fill(NOBODY), // whose state it is, or was; -1: the slot is free
  tokens: new Int32Array(slots + places + 1), // of a kept state, how many it stands for
});

export const states = { ...empty(0, 0), isKept, counts };

function take(changes) {
  for (const [slot, request, tokens] of changes || []) {
    if (slot < 1 || slot > states.total) continue;
    states.request[slot] = request;
    states.tokens[slot] = tokens;
  }
}

/** Whether the slot is one of the prefix cache's. */
function isKept(slot) {
  return slot > states.slots;
}

/** How many running requests have a slot, and how many states are kept. */
function counts() {
  const n = { used: 0, kept: 0 };
  for (let slot = 1; slot <= states.total; slot++) {
    if (states.request[slot] !== NOBODY) n[isKept(slot) ? "kept" : "used"]++;
  }
  return n;
}

on("reset", ({ snapshot }) => {
  const { info } = store;
  Object.assign(states, empty(info?.state_slots || 0, info?.state_slots ? info.state_snapshots || 0 : 0));
  if (snapshot) take(snapshot.states);
});
on("frame", (delta) => {
  for (const frame of delta.frames || []) take(frame.states);
});
