/* Wheel, drag and keys on the step timeline: they zoom and pan the time that all time charts show. */
import { onKeys, pageScrolls } from "../shared/dom.js";
import { emit } from "../shared/events.js";
import { pointing, pointNowhere } from "../shared/pointing.js";
import { cellAt, stepUnder } from "./stepcells.js";
import { LEFT, timeline } from "./timeline.js";
import { view } from "./view.js";

const ZOOM = 1.25, LEAST_MS = 20, MOST_MS = 60000, PAN = 0.15, DRAG_PX = 4;

let drag = null;

/** @param {HTMLCanvasElement} canvas the timeline's */
export function steer(canvas) {
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
  canvas.addEventListener("pointermove", (event) => (drag ? moveBy(event.clientX - drag.x, canvas) : point(event)));
  for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => drop(event, canvas));
  canvas.addEventListener("dblclick", view.clear);
  canvas.addEventListener("pointerleave", pointNowhere);
  onKeys(canvas, onKey);
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

function moveBy(px, canvas) {
  if (!drag.moved && Math.abs(px) < DRAG_PX) return;
  drag.moved = true;
  canvas.classList.add("rp-dragging");
  const { x0, x1 } = drag.window, ms = (px / timeline.plot) * (x1 - x0);
  view.set(x0 - ms, x1 - ms);
}

function drop(event, canvas) {
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

function onKey(event) {
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
