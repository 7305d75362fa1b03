/* Saves files made by scripts. */
import { make } from "./dom.js";

const KEEP_MS = 10000; // time for the browser to take the file

/** Have the browser save a text, or data, as a file. @param {BlobPart} text */
export function saveFile(name, text, type) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), KEEP_MS);
}
