/* The blocks in view on the block map: all of them, or a window chosen by the wheel, two fingers, the keys or the
 * buttons of its head. Each step in or out halves or doubles their number, around the point where it is made. */
import { make, makeButton, pageScrolls } from "../shared/dom.js";
import { on } from "../shared/events.js";

/** @import { Layout, Zoom } from "./cellgrid.js" */

const WHEEL_PX = 60, PINCH = 1.5, DRAG_PX = 4; // a step of the wheel, a step of two fingers, and the least drag

export class BlockZoom {
  /** @param {HTMLCanvasElement} canvas @param {() => Layout} layout what is drawn now @param {() => void} onChange */
  constructor(canvas, layout, onChange) {
    /** @type {Zoom | null} null: all blocks are in view */
    this.at = null;
    this.canvas = canvas;
    this.layout = layout;
    this.onChange = onChange;
    this.turned = 0; // px of the wheel since the last step
    /** @type {Map<number, {x: number, y: number}>} pointers that are down */
    this.down = new Map();
    this.drag = null;
    this.dragged = false; // whether since the last press: then its click opens nothing
    this.out = makeButton("−", { "aria-label": "Show more blocks", title: "Zoom out", onclick: () => this.step(1) });
    this.in = makeButton("+", { "aria-label": "Show fewer blocks", title: "Zoom in", onclick: () => this.step(-1) });
    this.buttons = make("span", { className: "rp-tg rp-zoom", role: "group", "aria-label": "zoom" }, this.out, this.in);
    this.listen();
  }

  /** Update the buttons and the canvas's style; call this after each layout. */
  show() {
    const { level, most, first } = this.layout();
    this.at = level < most ? { level, first } : null;
    this.buttons.hidden = most === 0;
    this.out.disabled = level === most;
    this.in.disabled = level === 0;
    this.canvas.classList.toggle("rp-zoomed", level < most);
  }

  /** Show more or fewer blocks by some steps, around a place in their order, by default the middle. Returns whether the
   * number has changed. */
  step(steps, place = this.middle()) {
    const { level, most, first } = this.layout(), to = Math.max(0, Math.min(most, level + steps));
    if (to === level) return false;
    const before = (place - first) * 2 ** (to - level); // keeps it about where it is
    this.set(to < most ? { level: to, first: place - before } : null);
    return true;
  }

  /** Move the window by some rows. */
  pan(rows) {
    const { grids: [grid], first } = this.layout();
    if (this.at) this.set({ ...this.at, first: Math.max(0, first + rows * grid.columns * grid.per) });
  }

  /** Move the window so that a place in the order is in it. */
  reveal(place) {
    const { grids: [grid], first } = this.layout(), perRow = grid.columns * grid.per;
    const row = Math.floor(place / perRow), top = first / perRow;
    if (row < top) this.pan(row - top);
    else if (row >= top + grid.rows) this.pan(row - top - grid.rows + 1);
  }

  middle() {
    const { grids: [grid], first } = this.layout();
    return first + Math.floor(grid.numbers.length / 2);
  }

  /** @param {Zoom | null} at */
  set(at) {
    this.at = at;
    this.onChange();
  }

  placeAt({ offsetX, offsetY }) {
    const { grids: [grid], first } = this.layout(), index = grid.at(offsetX, offsetY);
    return index < 0 ? this.middle() : first + index * grid.per;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.lift(event));
    canvas.addEventListener("dblclick", () => this.at && this.set(null));
    for (const name of ["unzoom", "reset"]) on(name, () => this.at && this.set(null));
  }

  wheel(event) {
    const stays = pageScrolls() && document.activeElement !== this.canvas;
    if (event.ctrlKey || stays || this.layout().most === 0) return;
    event.preventDefault();
    this.turned = Math.sign(event.deltaY) === Math.sign(this.turned) ? this.turned + event.deltaY : event.deltaY;
    if (Math.abs(this.turned) < WHEEL_PX) return;
    this.step(Math.sign(this.turned), this.placeAt(event));
    this.turned = 0;
  }

  press(event) {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.down.set(event.pointerId, { x: event.clientX, y: event.clientY });
    this.dragged = this.down.size > 1;
    this.drag = { y: event.clientY, rows: 0, apart: this.apart() };
  }

  move(event) {
    if (!this.down.has(event.pointerId)) return;
    this.down.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (this.down.size > 1) this.pinch(event);
    else if (this.at) this.pull(event.clientY - this.drag.y);
  }

  /* Zoom when two fingers have moved apart or together enough for a step. */
  pinch(event) {
    const ratio = this.apart() / this.drag.apart;
    if (ratio < PINCH && ratio > 1 / PINCH) return;
    this.step(ratio > 1 ? -1 : 1, this.placeAt(event));
    this.drag.apart = this.apart();
  }

  pull(px) {
    const rows = -Math.trunc(px / this.layout().grids[0].dy);
    if (Math.abs(px) > DRAG_PX) this.dragged = true;
    if (rows === this.drag.rows) return;
    this.pan(rows - this.drag.rows);
    this.drag.rows = rows;
  }

  lift(event) {
    this.down.delete(event.pointerId);
    if (this.drag) this.drag.apart = this.apart();
  }

  /** px between two fingers. */
  apart() {
    const [a, b] = [...this.down.values()];
    return b ? Math.max(1, Math.hypot(a.x - b.x, a.y - b.y)) : 1;
  }
}
