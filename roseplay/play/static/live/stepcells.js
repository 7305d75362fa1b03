/* The pointer and the keys on the step timeline, whose cells are each a request's part in a step. Left and right go
 * through a row, up and down to the row above or below, Home and End to the first and the last in view; Enter asks why
 * its token took so long, Esc leaves. Wheel or + and −, and dragging or Shift with the arrow keys, zoom and pan the
 * time that all time charts show. */
import { onKeys, pageScrolls, write } from "../shared/dom.js";
import { emit, on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { slowed } from "../shared/past.js";
import { pointing, pointNowhere } from "../shared/pointing.js";
import { popover } from "../shared/popover.js";
import { laneOf, store, tokenOf } from "../shared/store.js";
import { time } from "../shared/time.js";
import { stepAt, stepSpan } from "./span.js";
import { LEFT, rows, timeline } from "./timeline.js";
import { view } from "./view.js";

const SLACK_PX = 6, LEAST_PX = 3;

/** The cell that the keys have chosen. @type {{rid: number, step: number} | null} */
let cursor = null;
let canvas = null, output = null, soon = null;

const MOVES = {
  ArrowLeft: () => along(rows.rowOf(cursor.rid), store.stepRow(cursor.step) - 1, -1, false),
  ArrowRight: () => along(rows.rowOf(cursor.rid), store.stepRow(cursor.step) + 1, 1, false),
  ArrowUp: () => beside(-1),
  ArrowDown: () => beside(1),
  Home: () => along(rows.rowOf(cursor.rid), store.steps.first, 1, true),
  End: () => along(rows.rowOf(cursor.rid), store.steps.end - 1, -1, true),
};

/** Let the pointer and the keys go from cell to cell, zoom and pan.
 * @param {HTMLElement} status where the chosen cell is put into words */
export function watch(ofTimeline, status, redraw) {
  [canvas, output, soon] = [ofTimeline, status, redraw];
  onKeys(canvas, (event) => chooses(event) || steers(event));
  steer();
  canvas.addEventListener("focus", soon);
  canvas.addEventListener("blur", () => {
    pointNowhere();
    soon();
  });
  on("reset", leave);
}

function chooses(event) {
  if (!timeline.window || event.shiftKey) return false;
  const enter = event.key === "Enter" || event.key === " ";
  if (event.key === "Escape") leave(); // the view goes back to now, too
  if (!enter && !(event.key in MOVES)) return false;
  if (!isKept()) go(newest());
  else if (enter) open();
  else go(MOVES[event.key]());
  return true;
}

// ---- at a point -------------------------------------------------------------------------------------------
const ms = (px) => timeline.window.x0 + ((px - LEFT) / timeline.plot) * (timeline.window.x1 - timeline.window.x0);

/** What is at a point of the canvas: {rid, step} with step null between steps; null if there is no request. */
function cellAt(px, py) {
  if (!timeline.window) return null;
  const t = ms(px), slack = ms(px + SLACK_PX) - t;
  let row = -1;
  for (let i = 0; i < timeline.shown; i++) if (Math.abs(timeline.y(i) - py) <= timeline.high(i) / 2) row = i;
  if (row < 0) return null;
  const lives = ({ submitted, finished }) =>
    time.x(submitted) - slack <= t && (finished === null || time.x(finished) + slack >= t);
  // The newest: it follows the one before it.
  const known = rows.visible.findLast((one) => rows.of(one) === row && lives(one));
  if (!known) return null;
  const hit = stepAt(t), active = hit && store.entriesOf(hit.slot).some((entry) => entry.rid === known.rid);
  return { rid: known.rid, step: active ? hit.step : null };
}

/** The step under a point of the canvas, or null. */
function stepUnder(px) {
  if (!timeline.window || px < LEFT || px > LEFT + timeline.plot) return null;
  const hit = stepAt(ms(px));
  return hit && hit.step;
}

// ---- from cell to cell ------------------------------------------------------------------------------------
const spanOf = (step) => stepSpan(store.stepRow(step) & store.steps.mask);

const inView = ({ x0, x1 }) => x1 >= timeline.window.x0 && x0 <= timeline.window.x1;

/* The first cell of a row, going from ring row `from` by `by`; with `seen`, only those in view. */
function along(row, from, by, seen) {
  const { steps } = store;
  for (let i = from; i >= steps.first && i < steps.end; i += by) {
    const slot = i & steps.mask;
    if (seen && !inView(stepSpan(slot))) continue;
    const match = store.entriesOf(slot).find((entry) => rows.rowOf(entry.rid) === row);
    if (match) return { rid: match.rid, step: steps.step_id[slot] };
  }
  return null;
}

/* The cell of a row that is nearest in time to a step. */
function nearest(row, step) {
  const here = store.stepRow(step), before = along(row, here, -1, true), after = along(row, here, 1, true);
  if (!before || !after) return before || after;
  return step - before.step <= after.step - step ? before : after;
}

function beside(by) {
  for (let row = rows.rowOf(cursor.rid) + by; row >= 0 && row < timeline.shown; row += by) {
    const cell = nearest(row, cursor.step);
    if (cell) return cell;
  }
  return null;
}

/* The first cell for the keys: the newest in view, in the first row that has one. */
function newest() {
  for (let row = 0; row < timeline.shown; row++) {
    const cell = along(row, store.steps.end - 1, -1, true);
    if (cell) return cell;
  }
  return null;
}

const isKept = () => cursor !== null && store.stepRow(cursor.step) >= 0 && rows.rowOf(cursor.rid) >= 0;

function go(cell) {
  if (!cell) return;
  if (popover.name === "why") emit("select", null);
  cursor = cell;
  const span = spanOf(cell.step), { x0, x1 } = timeline.window;
  if (!inView(span)) view.set(span.x0 - (x1 - x0) / 2, span.x0 + (x1 - x0) / 2);
  emit("hover", cell.rid);
  emit("step", cell.step);
  write(output, words(cell));
  soon();
}

function open() {
  const { x0, x1 } = spanOf(cursor.step), rect = canvas.getBoundingClientRect(), row = rows.rowOf(cursor.rid);
  emit("select", { ...cursor, x: rect.left + timeline.x((x0 + x1) / 2), y: rect.top + timeline.y(row) });
}

function leave() {
  if (!cursor) return;
  cursor = null;
  write(output, "");
  pointNowhere();
}

// ---- zooming and panning -----------------------------------------------------------------------------------
const ZOOM = 1.25, LEAST_MS = 20, MOST_MS = 60000, PAN = 0.15, DRAG_PX = 4;

let drag = null;

function steer() {
  canvas.addEventListener("wheel", (event) => {
    if (!timeline.window || event.ctrlKey || (pageScrolls() && document.activeElement !== canvas)) return;
    event.preventDefault();
    const { x0, x1 } = timeline.window, { plot } = timeline;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(((x1 - x0) / plot) * event.deltaX);
    else zoom(event.deltaY > 0 ? ZOOM : 1 / ZOOM, Math.max(0, Math.min(1, (event.offsetX - LEFT) / plot)));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !timeline.window) return;
    drag = { x: event.clientX, window: timeline.window, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => (drag ? moveBy(event.clientX - drag.x) : point(event)));
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, drop);
  canvas.addEventListener("dblclick", view.clear);
  canvas.addEventListener("pointerleave", pointNowhere);
}

function zoom(factor, share) {
  const { x0, x1 } = timeline.window, span = Math.max(LEAST_MS, Math.min(MOST_MS, (x1 - x0) * factor));
  const middle = x0 + (x1 - x0) * share;
  view.set(middle - span * share, middle + span * (1 - share));
}

function pan(ms) {
  const { x0, x1 } = timeline.window;
  view.set(x0 + ms, x1 + ms);
}

function moveBy(px) {
  if (!drag.moved && Math.abs(px) < DRAG_PX) return;
  drag.moved = true;
  canvas.classList.add("rp-dragging");
  const { x0, x1 } = drag.window, ms = (px / timeline.plot) * (x1 - x0);
  view.set(x0 - ms, x1 - ms);
}

function drop(event) {
  canvas.classList.remove("rp-dragging");
  const clicked = drag && !drag.moved && event.type === "pointerup";
  drag = null;
  if (!clicked) return;
  const what = cellAt(event.offsetX, event.offsetY);
  if (what && what.step !== null) emit("select", what); // beside it nothing is deselected
}

function point(event) {
  const what = cellAt(event.offsetX, event.offsetY);
  emit("hover", what ? what.rid : null);
  const step = stepUnder(event.offsetX);
  if (step !== pointing.step) emit("step", step);
}

function steers(event) {
  if (!timeline.window) return false;
  const span = timeline.window.x1 - timeline.window.x0;
  const acts = {
    ArrowLeft: () => event.shiftKey && pan(-span * PAN),
    ArrowRight: () => event.shiftKey && pan(span * PAN),
    "+": () => zoom(1 / ZOOM, 0.5),
    "=": () => zoom(1 / ZOOM, 0.5),
    "-": () => zoom(ZOOM, 0.5),
  };
  if (acts[event.key]) acts[event.key]();
  return event.key in acts;
}

// ---- what is said and drawn -------------------------------------------------------------------------------
function words({ rid, step }) {
  const lane = laneOf(rid) === null ? "" : `, lane ${laneOf(rid)}`;
  const entry = store.entriesOf(spanOf(step).slot).find((one) => one.rid === rid);
  const decoded = entry.decode_tokens
    ? format.many(entry.decode_tokens, "decode token")
    : "prompt cached, nothing computed";
  const did = entry.prompt_tokens ? format.many(entry.prompt_tokens, "prompt token") : decoded;
  const { itl, t } = tokenOf(rid, step) ?? {}, slow = slowed(t);
  const after = itl === undefined ? "" : Number.isNaN(itl) ? ", first token" : `, ITL ${format.ms(itl)} ms${slow}`;
  return `Request ${rid}${lane}, step ${format.count(step)}: ${did}${after}`;
}

/** Outline the cell that the keys have chosen, while they are in use. */
export function outlineCell(pen) {
  if (!isKept() || (document.activeElement !== canvas && popover.name !== "why")) return;
  const row = rows.rowOf(cursor.rid), span = spanOf(cursor.step);
  if (row >= timeline.shown || !inView(span)) return;
  const x0 = timeline.x(span.x0), width = Math.max(LEAST_PX, timeline.x(span.x1) - x0);
  const high = Math.max(LEAST_PX, timeline.high(row) - 1.5);
  pen.frame(x0 - 0.75, timeline.y(row) - high / 2 - 0.75, width + 1.5, high + 1.5, timeline.T.ink);
}
