/* The keyboard, the help, the theme button, and the explanations that appear when the pointer rests on a word. */
import { explain, given } from "./shared/given.js";
import { chosenIn, inputOf } from "./shared/gradio.js";
import { focusLane, sendTo } from "./lanes/lanes.js";
import { demos } from "./live/demos.js";
import { labelControls } from "./live/terms.js";

const TEXT = /^(text|number|search|email|url|password|)$/;

function typing(target) {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return TEXT.test(target.type);
  return target.isContentEditable || ["TEXTAREA", "SELECT"].includes(target.tagName);
}

/* Whether arrow keys have another meaning in the focused element. */
const steers = (target) => target instanceof Element && Boolean(target.closest("canvas, .rp-lane, input, [role=tab]"));

/** Press a button, if it is there. @param {string} id */
export function press(id) {
  const button = document.getElementById(id);
  if (button && !button.disabled) button.click();
}

function help() {
  const dialog = document.getElementById("rp-help");
  if (dialog.open) dialog.close();
  else dialog.showModal();
}

/* Answer a demo's question, or focus a lane. */
const choose = (number) => (demos.own && demos.caption.answers?.[number - 1] ? demos.next : focusLane)(number);

/* What keys do while a tab is shown, by its element. */
const keys = { "rp-live": { ".": () => press("stop"), b: () => press("burst"), d: () => demos.start() } };
for (let n = 1; n <= 8; n++) keys["rp-live"][n] = () => choose(n);

/** Set the keys of an extension's tab. @param {string} tab its element @param {Record<string, () => void>} actions */
export const setKeys = (tab, actions) => (keys[tab] = actions);

function keyOfTab(key) {
  const shown = Object.keys(keys).find((tab) => document.querySelector(`#${tab}-button.selected`));
  return keys[shown]?.[key];
}

document.addEventListener("keydown", (event) => {
  const prompt = inputOf("prompt"), { key, target } = event;
  const asked = target instanceof Element && target.matches(".rp-asked");
  if (key === "Escape" && (asked || target === prompt)) {
    prompt.blur(); // then keys are shortcuts again
    sendTo();
  }
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || typing(target)) return;
  if (asked && key.length === 1) return prompt.focus();
  if (key === "?") help();
  else if (document.querySelector("dialog[open]")) return;
  else if (keyOfTab(key)) keyOfTab(key)();
  else if ((key === "n" || key === "ArrowRight") && demos.own && !steers(target)) demos.next();
  else return;
  event.preventDefault();
});

// ---- words ------------------------------------------------------------------------------------------------
/* Make the Burst button's text say what it would send: on a phone its settings are hidden. */
function showBurst() {
  const burst = document.getElementById("burst"), size = inputOf("burst-size", "number"), kind = chosenIn("mix");
  if (burst && size && kind) burst.dataset.what = `${size.value} × ${kind}`;
}
document.addEventListener("input", showBurst);

/** @param {HTMLElement} element the header's buttons */
export function mount(element) {
  element.querySelector("#rp-theme").onclick = () => document.dispatchEvent(new Event("roseplay-theme"));
  element.querySelector("#rp-help-button").onclick = help;
  document.addEventListener("click", (/** @type {any} */ event) => {
    const button = document.getElementById("rp-knobs-button");
    if (!button || !button.contains(event.target)) return;
    button.setAttribute("aria-expanded", String(document.body.classList.toggle("rp-open")));
  });
  labelControls();
  explain(given.terms, () => {
    document.getElementById("mix")?.setAttribute("aria-label", "Prompts");
    showBurst();
  });
}
