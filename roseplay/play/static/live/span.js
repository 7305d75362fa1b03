/* Where steps lie in view time. */
import { format } from "../shared/format.js";
import { store } from "../shared/store.js";
import { clock, time } from "../shared/time.js";

/** @typedef {{step: number, x0: number, x1: number, slot: number}} Span a step, its stretch in ms and its ring slot */

/** The stretch of the step in a ring slot. @param {number} slot @returns {Span} */
export function stepSpan(slot) {
  const { steps } = store;
  return { step: steps.step_id[slot], x0: time.x(steps.t0[slot]), x1: time.x(steps.t1[slot]), slot };
}

/** How long ago a step ended, as "2.5 s ago"; "" if it is no longer kept. @param {number} step */
export function agoOf(step) {
  const { steps } = store, row = store.stepRow(step);
  return row < 0 ? "" : format.ago(clock() - steps.t1[row & steps.mask]);
}

/** The ring slots of the steps that touch a stretch of view time, newest first. */
export function stepsIn({ x0, x1 }) {
  const { steps } = store, slots = [];
  for (let i = steps.end - 1; i >= steps.first; i--) {
    const slot = i & steps.mask;
    if (time.x(steps.t1[slot]) < x0) break;
    if (time.x(steps.t0[slot]) <= x1) slots.push(slot);
  }
  return slots;
}

/** The step at a moment of view time, or null. @param {number} ms */
export function stepAt(ms) {
  const [slot] = stepsIn({ x0: ms, x1: ms });
  return slot === undefined ? null : stepSpan(slot);
}
