/* The clipboard. */
import { make } from "./dom.js";

export const plain = (text) => new Blob([text], { type: "text/plain" });

/** Copy a text, which may still be being made; returns whether the browser let the page do it. Safari does so only in a
 * click, before anything is awaited.
 * @param {string | Promise<string>} text */
export async function copy(text) {
  if (!text) return false;
  try {
    if (typeof text === "string") await navigator.clipboard.writeText(text);
    else await navigator.clipboard.write([new ClipboardItem({ "text/plain": text.then(plain) })]);
    return true;
  } catch {
    return copyOldWay(await text); // no permission, or a page without https
  }
}

function copyOldWay(text) {
  /** @type {any} */
  const focused = document.activeElement;
  const field = make("textarea", { value: text, style: "position:fixed;opacity:0" });
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (focused) focused.focus();
  return done;
}
