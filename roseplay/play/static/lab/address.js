/* The part of the Lab that the page needs before its tab is opened: `#lab` in the address opens the tab, `#lab=<id>` a
 * result in it. While the lab uses the engine, a chip in the header says why the lanes are paused. */
import { emit, on } from "../shared/events.js";
import { lab, tell } from "./state.js";

const LOOK_MS = 150, PATIENCE_MS = 20000;

/** The result that the address names, or null. */
export function wantedResult() {
  const found = /^#lab=([\w.-]+)$/.exec(location.hash);
  return found ? found[1] : null;
}

const button = () => document.querySelector('#rp-lab-button[role="tab"]');

function open(left = PATIENCE_MS) {
  if (!/^#lab(=|$)/.test(location.hash)) return;
  if (button()) button().click();
  else if (left > 0) setTimeout(open, LOOK_MS, left - LOOK_MS); // Gradio has not drawn the tabs yet
}
open();
addEventListener("hashchange", () => {
  open();
  emit("lab", "wanted");
});

// A replay hands over its traffic.
on("fork", (fork) => {
  lab.fork = fork;
  location.hash = "#lab";
  tell("fork");
});

// A reload returns to the last tab.
document.addEventListener("click", (event) => {
  const tab = event.target instanceof Element && event.target.closest("#rp-tabs [role=tab]");
  if (!tab) return;
  const inLab = /^#lab(=|$)/.test(location.hash);
  if (tab === button() && !inLab) history.replaceState(null, "", "#lab");
  else if (tab !== button() && inLab) history.replaceState(null, "", location.pathname + location.search);
});

/** Show or hide the chip that says that the lab uses the engine exclusively. */
export function showPaused(paused) {
  const chip = document.querySelector(".rp-lab-chip");
  if (chip) chip.hidden = !paused;
}
on("frame", (delta) => {
  if (typeof delta.lab === "boolean") showPaused(delta.lab);
});
