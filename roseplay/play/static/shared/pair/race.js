/* Two runs played side by side, as fast as they were. */
import { makeButton } from "../dom.js";

/** @import { Pair } from "../types.js" */

const BEFORE_MS = 1000, AFTER_MS = 1000; // played before the moment, and after the last first token or step
const TITLE = "Play both runs side by side, as fast as they were";

/** A button that plays the current pair. Each frame is drawn by `draw`, up to when it is given, in ms of the picture's
 * axis; the last one to its end.
 * @param {() => Pair | null} current
 * @param {(now: number) => void} draw */
export function raceButton(current, draw) {
  let began = 0; // of the newest press
  const button = makeButton("Race", { className: "rp-back", title: TITLE, onclick: () => play(current()) });

  function play(pair) {
    const start = began = performance.now(), end = Math.max(...pair.sides.flatMap(lasts)) + AFTER_MS;
    const frame = (at) => {
      if (start !== began) return;
      const now = at - start - BEFORE_MS, over = now > end || pair !== current();
      draw(over ? Infinity : now);
      if (!over) requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
  }

  return button;
}

/* When its first tokens have come and its steps have ended. */
const lasts = ({ firsts, steps = [] }) => [...firsts, ...steps.map(([, t1]) => t1)];

/** Whether it is known of both runs what a reader saw. @param {Pair | null} pair */
export const races = (pair) => Boolean(pair?.sides.every(({ reader, firsts }) => reader && firsts.length));
