/* A message over the page, such as why the server refused something. It stays for a while, or until it is dismissed. */
import { crossIcon, make, makeButton, write } from "./dom.js";

const STAYS_MS = 10000;
let box = null, timer = null;

/** A bar of words that are read aloud, with a button to dismiss them. @param {() => void} onclick of the button */
export function makeBar(id, label, onclick, ...before) {
  const dismiss = makeButton(crossIcon(), { "aria-label": "Dismiss", title: "Dismiss", onclick });
  const bar = make("section", { id, "aria-label": label }, ...before, make("span", { role: "alert" }), dismiss);
  document.body.append(bar);
  return bar;
}

function show(text) {
  box.hidden = !text;
  write(box.firstChild, text);
}

/** Show a message in place of the one before. @param {string} text */
export function tell(text) {
  box ??= makeBar("rp-message", "Message", () => show(""));
  show(text);
  clearTimeout(timer);
  timer = setTimeout(show, STAYS_MS, "");
}
