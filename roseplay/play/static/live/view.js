/* The stretch of time that the time charts show: the last 15 s of work, or what the user has zoomed into. Then they all
 * stand still until Esc, a double click, or "back to now". */
import { emit, on } from "../shared/events.js";
import { poll } from "../shared/poll.js";
import { time } from "../shared/time.js";

/** @import { TimeWindow } from "../shared/types.js" */

const SPAN_MS = 15000;

export const view = {
  /** @type {{x0: number, x1: number, now: number} | null} */
  zoom: null,
  serial: 0, // rises with every change
  window,
  latest,
  set,
  clear,
};

/**
 * What is shown at the view time `now`.
 * @param {number} now
 * @returns {TimeWindow}
 */
function window(now, span = SPAN_MS) {
  return view.zoom ? { ...view.zoom, live: false } : latest(now, span);
}

/**
 * The newest stretch, zoomed or not.
 * @param {number} now
 * @returns {TimeWindow}
 */
function latest(now, span = SPAN_MS) {
  return { x0: now - span, x1: now, now, live: true };
}

/** Zoom to a stretch of view time. */
function set(x0, x1) {
  if (!(x1 > x0)) return;
  view.zoom = { x0, x1, now: view.zoom ? view.zoom.now : time.now() };
  changed();
}

/** Back to now. */
function clear() {
  if (view.zoom) {
    view.zoom = null;
    changed();
  }
  emit("unzoom");
}

function changed() {
  view.serial++;
  emit("zoom", view.zoom);
}

/** What stands in a view that has nothing to draw. */
export function nothingYet() {
  return poll.held ? "Nothing yet." : "Press Burst.";
}

/**
 * What stands in one that has nothing to draw in a stretch of time.
 * @param {TimeWindow | null} window
 */
export const nothingIn = (window) => (window && !window.live ? "Nothing here. Esc returns to now." : nothingYet());

on("reset", clear);
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  clear();
  emit("select", null);
});
