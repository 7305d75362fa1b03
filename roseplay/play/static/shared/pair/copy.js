/* Copies a picture of two runs: as an image, and as a link that opens it. */
import { copy } from "../copy.js";
import { make, write } from "../dom.js";
import { saveFile } from "../download.js";
import { createPen } from "../pen.js";
import { palette } from "../theme.js";
import { linkTo } from "./link.js";
import { drawPair } from "./picture.js";

/** @import { Pair } from "../types.js" */

export const COPY = "Copy this result"; // the button's words
const WIDTH = 800, HEIGHT = 560, SCALE = 2, SAID_MS = 2500;

/** @param {Pair} pair @returns {Promise<Blob>} a PNG */
function imageOf(pair) {
  const canvas = make("canvas"), pen = createPen(canvas);
  pen.begin(WIDTH, HEIGHT, SCALE);
  drawPair(pen, WIDTH, HEIGHT, { ...pair, about: `roseplay: ${pair.about}` }, palette());
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

/**
 * Copy a pair to the clipboard, as picture and link; where the browser does not take pictures, it saves the picture and
 * copies the link. The button says what was done.
 * @param {HTMLElement} button
 * @param {Pair} pair
 */
export async function copyPair(button, pair) {
  const image = await imageOf(pair), link = await linkTo(pair);
  write(button, await copied(image, link));
  setTimeout(write, SAID_MS, button, COPY);
}

async function copied(image, link) {
  try {
    const text = new Blob([link], { type: "text/plain" });
    await navigator.clipboard.write([new ClipboardItem({ "image/png": image, "text/plain": text })]);
    return "Picture and link copied";
  } catch { // no permission, or a page without https
    saveFile("roseplay-before-and-after.png", image, "image/png");
    return await copy(link) ? "Picture saved, link copied" : "Picture saved";
  }
}
