/* What the pointer or the keys are on, in whichever view: a request, a step, and the token that was selected. */
import { on } from "./events.js";

/**
 * @typedef {{rid: number, step: number | null, token?: number, itl?: number, p50?: number, x?: number, y?: number}}
 *   Selected
 */

export const pointing = {
  /** @type {number | null} */
  rid: null,
  /** @type {number | null} */
  step: null,
  /** @type {Selected | null} */
  selected: null,
};

on("hover", (rid) => {
  pointing.rid = rid;
});
on("step", (step) => {
  pointing.step = step;
});
on("select", (what) => {
  pointing.selected = what;
});
