/* Copies a picture of two runs: as an image, and as a link that opens it. */
import { copy, plain } from "../copy.js";
import { make, write } from "../dom.js";
import { saveFile } from "../download.js";
import { createPen } from "../pen.js";
import { palette } from "../theme.js";
import { linkTo } from "./link.js";
import { drawPair } from "./picture.js";

/** @import { Pair } from "../types.js" */

export const COPY = "Copy this result"; // the button's words
const WIDTH = 800, HEIGHT = 560, SCALE = 2, SAID_MS = 4000;
const HERE = /^(localhost|127\.|\[::1\])/, ONLY_HERE = "; the link opens only on this computer";

/** @param {Pair} pair @returns {Promise<Blob>} a PNG */
async function imageOf(pair) {
  const canvas = make("canvas"), pen = createPen(canvas);
  pen.begin(WIDTH, HEIGHT, SCALE);
  drawPair(pen, WIDTH, HEIGHT, { ...pair, about: `roseplay: ${pair.about}` }, palette());
  return await new Promise((done, failed) => canvas.toBlob((png) => png ? done(png) : failed(), "image/png"));
}

/** Copy a pair to the clipboard, as picture and link; where the browser does not take pictures, it saves the picture
 * and copies the link, or shows it in the address bar. The button says what was done.
 * @param {HTMLElement} button
 * @param {Pair} pair */
export async function copyPair(button, pair) {
  write(button, await copyBoth(imageOf(pair), linkTo(pair))); // the clipboard is open only within the click
  setTimeout(write, SAID_MS, button, COPY);
}

async function copyBoth(image, link) {
  const where = HERE.test(location.hostname) ? ONLY_HERE : "";
  try {
    await navigator.clipboard.write([new ClipboardItem({ "image/png": image, "text/plain": link.then(plain) })]);
    return `Picture and link copied${where}`;
  } catch { // no permission, or a page without https
    const done = await copy(link), save = (png) => saveFile("roseplay-before-and-after.png", png, "image/png");
    if (!done) history.replaceState(null, "", await link);
    const saved = await image.then(save).then(() => "Picture saved", () => "No picture");
    return `${saved}, link ${done ? "copied" : "in the address bar"}${where}`;
  }
}
