/* Sliders over a list of values: their own value is an index, and a box beside them shows the value. */
import { given } from "../shared/given.js";
import { fill, inputOf } from "../shared/gradio.js";

const text = (value, none) => value === null ? none : String(value);

/** The value at the place of the slider with this id. */
export const stopAt = (id) => given.stops[id][Number(inputOf(id, "range").value)];

/** The text of a value in the box. */
export const boxText = (value) => text(value, "∞");

/** The index whose value is nearest, as Stops.place() in Python finds it. */
export function place(id, value) {
  const stops = given.stops[id];
  if (value === null) return stops.length - 1;
  const far = (stop) => (stop === null ? Infinity : Math.abs(Math.log(stop / value)));
  return stops.reduce((best, stop, i) => (far(stop) < far(stops[best]) ? i : best), 0);
}

/** Show a value in the box, and tell screen readers, which would hear the index. */
export function nameStop(id, value) {
  fill(inputOf(`${id}-value`), boxText(value));
  inputOf(id, "range")?.setAttribute("aria-valuetext", text(value, "unlimited"));
}

/** Show a value with both. */
export function showStop(id, value) {
  if (stopAt(id) !== value) fill(inputOf(id, "number"), place(id, value));
  nameStop(id, value);
}
