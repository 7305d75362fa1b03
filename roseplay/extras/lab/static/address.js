/* The part of the Lab that the page needs before its tab is opened: `#lab` in the address opens the tab, `#lab=<id>` a
 * result in it. While the lab uses the engine, a chip in the header says why the lanes are paused. */
import { press, setKeys } from "page/keys.js";
import { make } from "page/shared/dom.js";
import { emit, on } from "page/shared/events.js";
import { given } from "page/shared/given.js";
import { lab, tell } from "./state.js";

Object.assign(window.Rose, { lab });
setKeys("rp-lab", { r: () => press("lab-run"), ".": () => press("lab-stop") });

const LOOK_MS = 150, PATIENCE_MS = 20000;
let chip = null;

export function wantedResult() {
  const match = /^#lab=(.+)$/.exec(location.hash);
  return match ? match[1].replaceAll("/", "-") : null; // it is a part of a path
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
  const chips = document.querySelector("#rp-chip .html-container > div");
  chip ??= make("span", { className: "rp-chip rp-lab-chip", title: given.tabs.lab.paused }, "paused by the lab");
  if (paused) chips?.append(chip);
  else chip.remove();
}
on("frame", (delta) => {
  if (typeof delta.lab === "boolean") showPaused(delta.lab);
});
