/* The stretch of time that the time charts show: the last 3, 15 or 60 s of work, or what the user has zoomed into. When
 * zoomed, they all stand still until Esc, a double click, or "back to now". */
import { emit, on } from "../shared/events.js";
import { time } from "../shared/time.js";

/** @import { TimeWindow } from "../shared/types.js" */

/** How many ms of work can be shown. */
export const SPANS = [3000, 15000, 60000];
export const USUAL_SPAN = 15000;

export const view = {
  span: USUAL_SPAN,
  /** @type {{x0: number, x1: number, now: number} | null} */
  zoom: null,
  serial: 0, // rises with every change
  window,
  latest,
  set,
  setSpan,
  clear,
};

/** What is shown at the view time `now`. @param {number} now @returns {TimeWindow} */
function window(now, span = view.span) {
  return view.zoom ? { ...view.zoom, live: false } : latest(now, span);
}

/** The newest stretch, zoomed or not. @param {number} now @returns {TimeWindow} */
function latest(now, span = view.span) {
  return { x0: now - span, x1: now, now, live: true };
}

/** Zoom to a stretch of view time. */
function set(x0, x1) {
  if (!(x1 > x0)) return;
  view.zoom = { x0, x1, now: view.zoom ? view.zoom.now : time.now() };
  emitZoom();
}

/** Show this many ms, up to now. */
function setSpan(ms) {
  view.span = ms;
  view.zoom = null;
  emitZoom();
}

/** Back to now. */
function clear() {
  if (view.zoom) {
    view.zoom = null;
    emitZoom();
  }
  emit("unzoom");
}

function emitZoom() {
  view.serial++;
  emit("zoom", view.zoom);
}

/** The text of a view that has nothing to draw in a stretch of time: what it will show.
 * @param {TimeWindow | null} window */
export const nothingIn = (window, words) => (window && !window.live ? "Nothing here. Esc returns to now." : words);

on("reset", clear);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  clear();
  emit("select", null);
});
