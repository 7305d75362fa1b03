/* What the pointer or the keys are on, in any view: a request, a step, and the selected token. */
import { emit, on } from "./events.js";

/** @typedef {{rid: number, step: number | null, token?: number, itl?: number, p50?: number, x?: number, y?: number,
 *   around?: DOMRect}} Selected */

export const pointing = {
  /** @type {number | null} */
  rid: null,
  /** @type {number | null} */
  step: null,
  /** @type {Selected | null} */
  selected: null,
};

/** Whether a request is dimmed because another one is selected. Pointing alone dims nothing. @param {number} rid */
export const standsBack = (rid) => pointing.selected !== null && pointing.selected.rid !== rid;

/** The pointer or the keys have left what they were on. */
export function pointNowhere() {
  emit("hover", null);
  emit("step", null);
}

on("hover", (rid) => (pointing.rid = rid));
on("step", (step) => (pointing.step = step));
on("select", (what) => (pointing.selected = what));
