/* What the Lab does: compare two settings, sweep one, or search for its value. */
import { onArrows } from "page/shared/dom.js";
import { on } from "page/shared/events.js";
import { keep, stored } from "page/shared/storage.js";
import { lab, tell } from "./state.js";

/** @import { Mode } from "./state.js" */

const LAST = "roseplay-lab-mode";
export const RUN_WORDS = { compare: "Run A and B", sweep: "Run sweep", find: "Find" };
const NOTES = {
  compare: "Same prompts, same arrival times, greedy. Slow motion is refused here.",
  sweep: "In rounds over all values. Stop keeps the runs measured so far.",
  find:
    "Tries the least restrictive value, then halves the range. The running engine changes only when you press Apply.",
};
/** @type {HTMLElement[]} */
let radios = [];

export function mount(element) {
  const group = element.querySelector("[role=radiogroup]");
  radios = [...group.querySelectorAll("button")];
  for (const radio of radios) radio.onclick = () => setMode(/** @type {Mode} */ (radio.dataset.mode));
  onArrows(group, () => radios);
  on("lab", (what) => what === "mode" && show());
  const last = stored(LAST);
  if (last in RUN_WORDS) lab.mode = /** @type {Mode} */ (last);
  show();
}

/** @param {Mode} mode */
export function setMode(mode) {
  if (lab.mode === mode) return;
  lab.mode = mode;
  keep(LAST, mode);
  tell("mode");
}

function show() {
  const page = document.getElementById("rp-lab"), run = document.getElementById("lab-run");
  if (page) page.dataset.mode = lab.mode;
  for (const radio of radios) {
    const chosen = radio.dataset.mode === lab.mode;
    radio.setAttribute("aria-checked", String(chosen));
    radio.tabIndex = chosen ? 0 : -1;
  }
  if (run && run.firstChild) run.replaceChildren(RUN_WORDS[lab.mode]);
  const note = document.querySelector("#rp-lab-note p");
  if (note) note.replaceChildren(NOTES[lab.mode]);
  else requestAnimationFrame(show); // Gradio mounts it later
}
