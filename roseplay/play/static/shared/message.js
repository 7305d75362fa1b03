/* A message over the page, such as why the server refused something. It stays for a while, or until it is dismissed. */
import { crossIcon, make, makeButton, write } from "./dom.js";

const STAYS_MS = 10000;
let box = null, timer = null;

function build() {
  const dismiss = makeButton(crossIcon(), { "aria-label": "Dismiss", title: "Dismiss", onclick: () => show("") });
  box = make("section", { id: "rp-message", "aria-label": "Message" }, make("span", { role: "alert" }), dismiss);
  document.body.append(box);
}

function show(text) {
  box.hidden = !text;
  write(box.firstChild, text);
}

/** Show a message in place of the one before. @param {string} text */
export function tell(text) {
  if (!box) build();
  show(text);
  clearTimeout(timer);
  timer = setTimeout(show, STAYS_MS, "");
}
