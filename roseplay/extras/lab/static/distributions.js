/* Shared by the two distributions of a result: their values, with A drawn solid over B dashed, each repeat thin and all
 * of them together thick, so that the spread between repeats can be distinguished from the difference between arms. */
import { sharp } from "page/shared/pen.js";
import { ascending, stroke } from "./draw.js";
import { ARMS, lab } from "./state.js";

export const MARGIN = { l: 44, r: 14, t: 8, b: 18 };

/** @typedef {Record<"A" | "B", {repeats: Float64Array[], pooled: Float64Array}>} Samples sorted, of each repeat and of
 *   all */

/** @returns {any} */
function collect(values) {
  return Object.fromEntries(ARMS.map((arm) => {
    const repeats = lab.document.runs.filter((run) => run.arm === arm).map((run) => ascending(values(run)));
    return [arm, { repeats, pooled: Float64Array.from(repeats.flatMap((one) => [...one])).sort() }];
  }));
}

/** Returns a function that collects the samples of the shown result, once per result; null if there is none.
 * @param {(run: any) => (number | null)[]} values of a run
 * @returns {() => Samples | null} */
export function samplesOf(values) {
  let of = null, samples = null;
  return () => {
    if (of !== lab.document) [of, samples] = [lab.document, lab.document && collect(values)];
    return samples;
  };
}

export const last = (sorted) => sorted[sorted.length - 1];
/** "A … · B …", with the text that `say` makes from each arm's values. */
export function both(samples, say) {
  return ARMS.map((arm) => `${arm} ${samples[arm].pooled.length ? say(samples[arm].pooled) : "–"}`).join(" · ");
}

/** The arms that have values. */
export const filled = (samples) =>
  samples ? ARMS.map((arm) => samples[arm].pooled).filter((pooled) => pooled.length) : [];

/** Draw each arm's curve; `outline` turns sorted values into points. */
export function drawCurve(pen, { repeats, pooled }, outline, looks) {
  if (repeats.length > 1) { for (const one of repeats) if (one.length) stroke(pen, outline(one), looks, false); }
  stroke(pen, outline(pooled), looks, true);
}

export function drawLimit(pen, x, words, area, T) {
  if (x < area.x0 || x > area.x1) return;
  pen.line(sharp(x), area.y0, sharp(x), area.y1, T.ink3, [1, 2]);
  const left = x > area.x1 - 80;
  pen.text(words, left ? x - 5 : x + 5, area.y1 - 6, T.ink3, left ? "right" : "left");
}
