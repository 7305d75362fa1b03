/* A limit of the scheduler as a handle on the stage: dragged, or moved by the arrow keys, it sets the knob, and the
 * control in the rail moves with it. */
import { make, onKeys, write } from "../shared/dom.js";
import { format } from "../shared/format.js";
import { given } from "../shared/given.js";
import { inputOf } from "../shared/gradio.js";
import { store } from "../shared/store.js";
import { knobNow, lacks, turnKnob } from "../live/knobs.js";
import { place } from "../live/stops.js";

/** A limit's knob, its name in few words, and the value at a point of the canvas, between the values it can have. */
export class Handle {
  /** @param {string} knob
   * @param {string} name
   * @param {(x: number, y: number) => number | null} valueAt */
  constructor(knob, name, valueAt) {
    this.knob = knob;
    this.name = name;
    this.dragged = false;
    this.number = make("b");
    const { label } = given.settings.knobs[knob], values = { className: "rp-handle", role: "slider", tabIndex: 0 };
    this.element = make(
      "span",
      { ...values, "aria-label": label, title: `${label}: drag it` },
      `${name} `,
      this.number,
    );
    this.element.addEventListener("pointerdown", (event) => this.take(event));
    this.element.addEventListener("pointermove", ({ clientX, clientY }) => {
      const { left, top } = this.element.parentElement.getBoundingClientRect();
      if (this.dragged) this.set(valueAt(clientX - left, clientY - top));
    });
    for (const type of ["pointerup", "pointercancel"]) {
      this.element.addEventListener(type, () => (this.dragged = false));
    }
    onKeys(this.element, ({ key }) => this.step({ ArrowUp: 1, ArrowRight: 1, ArrowDown: -1, ArrowLeft: -1 }[key]));
  }

  /** Whether the knob can be changed here and now. */
  get free() {
    const input = inputOf(this.id);
    return Boolean(input && !input.disabled && !lacks(this.knob) && !store.absent.knobs);
  }

  take(event) {
    if (!this.free) return;
    event.preventDefault();
    this.element.setPointerCapture(event.pointerId);
    this.element.focus({ preventScroll: true });
    this.dragged = true;
  }

  step(by) {
    if (!by || !this.free) return false;
    const value = this.nearest(knobNow(this.knob)), stops = [...new Set(given.stops[this.id])]; // each value once
    this.set(stops.length ? stops[Math.max(0, Math.min(stops.length - 1, stops.indexOf(value) + by))] : value + by);
    return true;
  }

  get id() {
    return given.controls[this.knob];
  }

  set(value) {
    turnKnob(this.knob, this.nearest(value));
  }

  /* The value that the knob can have and that is nearest. */
  nearest(value) {
    const { id } = this, stops = given.stops[id], { min, max } = inputOf(id, "range");
    return stops ? stops[place(id, value)] : Math.max(Number(min), Math.min(Number(max), value));
  }

  /** Show it with its middle at a height, and a value. @param {number} y @param {number | null} value */
  show(y, value) {
    const { free } = this;
    write(this.number, format.limit(value));
    this.element.style.top = `${y}px`;
    this.element.toggleAttribute("data-free", free);
    this.element.tabIndex = free ? 0 : -1;
    this.element.setAttribute("aria-valuetext", value === null ? "unlimited" : String(value));
    this.element.setAttribute("aria-disabled", String(!free));
  }
}
