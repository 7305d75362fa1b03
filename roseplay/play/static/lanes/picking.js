/* Makes the lanes' tokens selectable: a click, or the arrow keys and Enter in a focused lane, emits "select". A token
 * that was selected anywhere is outlined in its lane. */
import { onKeys, scrollWithin } from "../shared/dom.js";
import { emit, on } from "../shared/events.js";
import { pointing } from "../shared/pointing.js";
import { store, tokenOf } from "../shared/store.js";

const LINE = 18, NEAR_MS = 0.02;
/** @typedef {{turn: import("./turn.js").Turn, k: number}} Place token k of a turn */

/** The token that is selected, and where the arrow keys are. @type {Record<"chosen" | "cursor", Place | null>} */
const places = { chosen: null, cursor: null };
let find = (_rid) => undefined;

/* The step that gave a request its token at a given time, or null if it is no longer kept. */
function stepOf(rid, t) {
  const { tokens } = store;
  for (let i = tokens.lowerBound(tokens.t, t - NEAR_MS); i < tokens.end; i++) {
    const slot = i & tokens.mask;
    if (tokens.t[slot] > t + NEAR_MS) break;
    if (tokens.request_id[slot] === rid) return tokens.step_id[slot];
  }
  return null;
}

function select(turn, k) {
  const step = stepOf(turn.rid, turn.times[k]);
  outline({ turn, k }, "chosen"); // it has a place of its own then, which stays uncovered
  const around = turn.marked("chosen")?.getBoundingClientRect();
  emit("select", { rid: turn.rid, step, token: k, itl: turn.gap(k), usual: turn.usual(k), t: turn.times[k], around });
}

function outline(where, name) {
  const before = places[name];
  if (before && (!where || before.turn !== where.turn)) before.turn.mark(-1, name);
  if (where) where.turn.mark(where.k, name);
  places[name] = where;
}

/* Scroll to a token. */
function show(turn, name) {
  const span = turn.marked(name), box = span && span.closest(".rp-text");
  if (box) scrollWithin(box, span, 0, LINE);
}

on("select", (what) => {
  const turn = what && find(what.rid), k = turn ? what.token ?? tokenIn(turn, what.step) : -1;
  outline(k < 0 ? null : { turn, k }, "chosen");
  if (k >= 0) show(turn, "chosen");
});

/* The token that a step gave a turn, or -1. */
function tokenIn(turn, step) {
  const t = tokenOf(turn.rid, step)?.t ?? null;
  return t === null ? -1 : turn.at(t);
}

// ---- pointer and keys -------------------------------------------------------------------------------------
function onClick(lane, event) {
  if (event.target.closest("button, textarea, form") || !getSelection().isCollapsed) return; // text is being selected
  const turn = lane.turns.find((one) => one.answer.contains(event.target));
  const k = turn ? turn.tokenAt(event.clientX, event.clientY) : -1;
  if (k >= 0) select(turn, k);
}

/* Where the arrow keys start: at the cursor, otherwise the selected token, otherwise after the last one. */
function here(lane) {
  for (const place of [places.cursor, places.chosen]) if (place && lane.turns.includes(place.turn)) return place;
  const turn = lane.turns[lane.turns.length - 1];
  return turn ? { turn, k: turn.ends.length } : null;
}

function horizontally(lane, from, by) {
  let at = lane.turns.indexOf(from.turn), k = from.turn.next(from.k, by);
  while (k < 0 && lane.turns[at + by]) {
    at += by;
    k = lane.turns[at].next(by > 0 ? -1 : lane.turns[at].ends.length, by);
  }
  return k < 0 ? null : { turn: lane.turns[at], k };
}

function vertically(lane, from, by) {
  const span = from.turn.marked("cursor") || from.turn.marked("chosen");
  if (!span) return horizontally(lane, from, by);
  const box = span.getBoundingClientRect();
  for (let line = 1; line <= 4; line++) { // over the question between two answers
    const x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2 + by * line * LINE;
    for (const turn of lane.turns) {
      const k = turn.tokenAt(x, y);
      if (k >= 0) return { turn, k };
    }
  }
  return horizontally(lane, from, by);
}

const ACROSS = { ArrowLeft: -1, ArrowRight: 1 }, ALONG = { ArrowUp: -1, ArrowDown: 1 };

function onKey(lane, event) {
  const from = event.target === lane.root ? here(lane) : null, { cursor } = places, { key } = event;
  if (!from) return false;
  if (key === "Enter" && cursor && lane.turns.includes(cursor.turn)) {
    select(cursor.turn, cursor.k);
  } else if (key in ACROSS || key in ALONG) {
    const to = key in ACROSS ? horizontally(lane, from, ACROSS[key]) : vertically(lane, from, ALONG[key]);
    if (to) outline(to, "cursor");
    if (to) show(to.turn, "cursor");
  } else return false;
  return true;
}

// ---- for lanes --------------------------------------------------------------------------------------------
/** Set the function that finds the turn of a request, in any lane.
 * @param {(rid: number) => import("./turn.js").Turn | undefined} byRid */
export function findTurnsBy(byRid) {
  find = byRid;
}

/** Make the tokens of a lane selectable. */
export function watch(lane) {
  lane.text.addEventListener("click", (event) => onClick(lane, event));
  onKeys(lane.root, (event) => onKey(lane, event));
  lane.root.addEventListener("focusout", (event) => {
    if (event.target === lane.root && lane.turns.includes(places.cursor?.turn)) outline(null, "cursor");
  });
}

/** Outline the selected token if it is in a turn that was added to its lane, or added again. */
export function outlineIn(turn) {
  const { selected } = pointing;
  if (!selected || selected.rid !== turn.rid || places.chosen?.turn === turn) return;
  const k = tokenIn(turn, selected.step);
  if (k >= 0) outline({ turn, k }, "chosen");
}
