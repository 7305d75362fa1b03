/* The clipboard. */
import { make } from "./dom.js";

/**
 * Copy a text; returns whether the browser let the page do it.
 * @param {string} text
 */
export async function copy(text) {
  if (!text) return false;
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyOldWay(text); // no permission, or a page without https
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
