/* A line above the page that stays until it is dismissed: why a model could not be loaded. */
import { crossIcon, make, makeButton, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { poll } from "../shared/poll.js";
import { keep, ofTab, stored } from "../shared/storage.js";

/** @import { Delta } from "../shared/types.js" */

const KEY = "roseplay-notice"; // stores the start to which the dismissed notice belongs

let bar = null, words = null;
/** @type {string | null} */
let boot = null;

function build() {
  const dismiss = makeButton(crossIcon(), { "aria-label": "Dismiss", title: "Dismiss", onclick: hide });
  words = make("span", { role: "alert" });
  bar = make("section", { id: "rp-notice", "aria-label": "Notice", hidden: true }, make("b", "", "!"), words, dismiss);
  document.body.append(bar);
}

function hide() {
  keep(KEY, boot, ofTab);
  show(null);
}

/** @param {string | null} text */
function show(text) {
  if (!bar && !text) return;
  if (!bar) build();
  bar.hidden = !text;
  document.body.classList.toggle("rp-noticed", Boolean(text));
  write(words, text || "");
}

on("frame", (/** @type {Delta} */ delta) => {
  if (poll.held) return; // a recording is shown
  boot = delta.boot_id;
  const text = delta.notice && stored(KEY, ofTab) !== boot ? delta.notice : null;
  if (text !== (words?.textContent || null)) show(text);
});
on("start", (start) => start && show(null));
