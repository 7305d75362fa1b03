/* The picture of two runs in a report, which is a page of its own. */
import { createPen } from "../pen.js";
import { palette } from "../theme.js";
import { describePair, drawPair } from "./picture.js";
import { raceButton, races } from "./race.js";

/** @import { Pair } from "../types.js" */

/** Keep a picture drawn on a canvas. @param {HTMLCanvasElement} canvas @param {Pair} pair */
export function draw(canvas, pair) {
  const pen = createPen(canvas);
  canvas.setAttribute("aria-label", describePair(pair));
  const again = (until = Infinity) => {
    const { clientWidth: width, clientHeight: height } = canvas;
    pen.begin(width, height);
    drawPair(pen, width, height, pair, palette(), until);
  };
  if (races(pair)) canvas.after(raceButton(() => pair, again));
  new ResizeObserver(() => again()).observe(canvas);
  document.fonts.ready.then(() => again());
}
