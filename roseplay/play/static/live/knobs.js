/* Keeps the rail's controls and the engine's knobs in sync, even if another tab or a program sets a knob. The controls
 * are not moved while the user is using one. */
import { make, write } from "../shared/dom.js";
import { call } from "../shared/ask.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { given, isGpu } from "../shared/given.js";
import { choose, fill, inputOf, isFilled, typing, whenMounted } from "../shared/gradio.js";
import { locked } from "../shared/lock.js";
import { store } from "../shared/store.js";
import { knobMarks, valueText } from "./knobmarks.js";
import { boxText, place, showStop, stopAt } from "./stops.js";

const IN_USE_MS = 700, AGAIN_MS = 150;
const SLOW_FACTOR = 10; // where the box has none
const { controls, settings } = given;
const KNOBS = Object.keys(controls);
const INPUTS = [...Object.values(controls).flatMap((id) => given.stops[id] ? [id, `${id}-value`] : id), "slow-factor"];
const SWITCHES = KNOBS.filter((knob) => settings.knobs[knob].kind === "switch");
let timer = 0, usedAt = 0, holding = false;

// ---- what the user enters ---------------------------------------------------------------------------------
/** Values requested by the controls that no frame has confirmed yet. @type {Record<string, any>} */
const pending = {};
/** Changes that are sent once the server has answered the previous ones. @type {Record<string, any> | null} */
let waiting = null;
let underWay = false;

/** The value of a knob, or the one that has been asked for. @param {string} knob */
export const knobNow = (knob) => knob in pending ? pending[knob] : store.knobs[knob];

/** Set a knob from elsewhere on the page; its control follows. @param {string} knob @param {number | null} value */
export function turnKnob(knob, value) {
  if (value === knobNow(knob)) return;
  showKnob(knob, value);
  setKnob(knob, value);
}

/* While a slider is dragged, only its newest position waits for the server's answer. */
function setKnob(knob, value) {
  pending[knob] = value;
  waiting = { ...waiting, [knob]: value };
  if (!underWay) send();
}

async function send() {
  underWay = true;
  while (waiting) {
    const knobs = waiting;
    waiting = null;
    const answer = await call("set_knobs", { knobs });
    for (const [knob, value] of Object.entries(knobs)) {
      if (pending[knob] !== value) continue; // another one has been asked for since
      if (answer) pending[knob] = answer[knob];
      else delete pending[knob];
    }
  }
  underWay = false;
  sync();
}

/* The factor in the box of slow motion, or 0. */
function factorIn(text) {
  const factor = Number(text.trim().replace(/^[×x]/i, ""));
  return factor > 1 && factor <= 1000 ? factor : 0;
}

/** The knob to whose control an input belongs, and which input it is. @param {Event} event */
function knobOf({ target }) {
  const input = /** @type {HTMLInputElement} */ (target);
  const knob = KNOBS.find((knob) => input.closest(`#${controls[knob]}, #${controls[knob]}-value`));
  return { input, knob: knob ?? (input.closest("#slow-factor") ? "slow_motion" : undefined) };
}

function onInput(event) {
  if (isFilled(event)) return;
  const { input, knob } = knobOf(event);
  usedAt = performance.now();
  if (!knob || input.type === "text") return; // a text is sent when it is complete
  const id = controls[knob];
  if (knob === "slow_motion") setKnob(knob, input.checked ? factorIn(inputOf("slow-factor").value) || SLOW_FACTOR : 1);
  else if (input.type === "checkbox") setKnob(knob, input.checked);
  else if (input.type === "radio") setKnob(knob, input.value);
  else if (given.stops[id]) onSlide(knob);
  else if (input.value) setKnob(knob, Math.trunc(Number(input.value))); // an emptied box has no value yet
}

function onSlide(knob) {
  const value = stopAt(controls[knob]);
  showStop(controls[knob], value);
  if (value !== knobNow(knob)) setKnob(knob, value);
}

function onTyped(event) {
  const { input, knob } = knobOf(event);
  usedAt = 0;
  if (knob && input.type === "text") {
    const factor = factorIn(input.value);
    if (knob !== "slow_motion" && input.value !== boxText(knobNow(knob))) setKnob(knob, input.value);
    else if (knob === "slow_motion" && (!factor || knobNow(knob) > 1)) setKnob(knob, factor || input.value);
  }
  sync(); // which also undoes what Gradio makes of a number out of range
}

/* Enter has Gradio show the other state of a switch, without an event. */
function onKey(event) {
  if (event.key !== "Enter" || event.target.type !== "checkbox") return;
  event.preventDefault();
  event.stopPropagation();
  event.target.click();
}

const ofRail = (listener) => (event) => {
  if (event.target instanceof Element && event.target.closest("#rp-rail")) listener(event);
};
document.addEventListener("input", ofRail(onInput), true);
document.addEventListener("typed", ofRail(onTyped), true);
document.addEventListener("keydown", ofRail(onKey), true);
document.addEventListener("pointerdown", ofRail(() => (holding = true)), true);
for (const type of ["pointerup", "pointercancel"]) {
  document.addEventListener(type, () => {
    if (holding) usedAt = performance.now();
    holding = false;
  }, true);
}

// ---- what the controls show -------------------------------------------------------------------------------
const busy = () => holding || typing("#rp-rail") || underWay || performance.now() - usedAt < IN_USE_MS;

function sync() {
  clearTimeout(timer);
  if (!Object.keys(store.knobs).length) return; // called again when there are some
  if (busy()) timer = setTimeout(sync, AGAIN_MS);
  else {
    const known = KNOBS.filter((knob) => knob in store.knobs); // old recordings lack some
    for (const knob of known) showKnob(knob, knobNow(knob));
    show();
  }
}

function showKnob(knob, value) {
  const id = controls[knob], { kind } = settings.knobs[knob];
  if (knob === "slow_motion") {
    const box = inputOf("slow-factor");
    fill(inputOf(id), value > 1);
    fill(box, `×${value > 1 ? value : factorIn(box.value) || SLOW_FACTOR}`);
  } else if (given.stops[id]) showStop(id, value);
  else if (kind === "switch") fill(inputOf(id), Boolean(value && !lacksGpu(knob)));
  else if (kind === "choice") choose(id, value);
  else fill(inputOf(id, "number"), value);
}

/* How far along its track a value stands, 0 to 1. */
function along(id, value) {
  if (given.stops[id]) return place(id, value) / (given.stops[id].length - 1);
  const range = inputOf(id, "range");
  return range ? (value - Number(range.min)) / (Number(range.max) - Number(range.min)) : 0;
}

/* The knobs that another server can change, if it cannot change all. */
const limitedKnobs = () => Object.keys(store.info?.knob_limits ?? {});

const FIXED = "It needs a restart of the server.";
const lacksGpu = (knob) => settings.knobs[knob].needs === "a GPU" && !(store.info && isGpu(store.info.device));

/** What a knob needs and this engine lacks, or why it cannot be changed, or "". */
export function lacks(knob) {
  const changeable = limitedKnobs();
  if (changeable.length && !changeable.includes(knob)) return FIXED;
  return lacksGpu(knob) ? settings.knobs[knob].needs : "";
}

/* What needs a GPU is among More settings, and cannot be used, unless there is one. */
function arrange() {
  const [more, last] = ["rp-more-knobs", "rp-slow-row"].map((id) => document.getElementById(id));
  for (const knob of KNOBS.filter((knob) => store.info && (settings.knobs[knob].needs || limitedKnobs().length))) {
    const control = document.getElementById(controls[knob]);
    const lacking = lacks(knob), most = inputOf(controls[knob], "range") && store.info.knob_limits?.[knob];
    const info = control?.querySelector(".info-text");
    if (lacksGpu(knob) && !more?.contains(control)) more?.append(control);
    else if (settings.knobs[knob].needs && !lacksGpu(knob) && more?.contains(control)) last?.before(control);
    for (const input of inputsOf(knob)) if (!locked(input)) input.disabled = Boolean(lacking);
    if (most) endAt(knob, most);
    if (control && limitedKnobs().length) control.title = most ? "Higher values need a server restart." : lacking;
    const hint = most ? `up to ${format.count(most)}` : settings.knobs[knob].hint;
    if (info) write(info, lacking === FIXED ? "fixed" : lacking ? `needs ${lacking}` : hint);
  }
}

/** All inputs of a knob's control. @returns {NodeListOf<HTMLInputElement>} */
function inputsOf(knob) {
  const boxes = knob === "slow_motion" ? "#slow-factor" : `#${controls[knob]}-value`;
  return document.querySelectorAll(`:is(#${controls[knob]}, ${boxes}) :is(input, textarea)`);
}

/* Let the slider of a knob end where another server does. */
function endAt(knob, most) {
  const id = controls[knob], stops = given.stops[id];
  if (stops) given.stops[id] = [...stops.filter((stop) => stop !== null && stop < most), most];
  const end = String(stops ? given.stops[id].length - 1 : most);
  for (const type of /** @type {("range" | "number")[]} */ (["range", "number"])) {
    inputOf(id, type)?.setAttribute("max", end);
  }
}
on("lock", arrange); // a lock that ends enables every control

const isOn = (knob) => store.knobs[knob] && !lacksGpu(knob);

// ---- what follows from the knobs --------------------------------------------------------------------------
function show() {
  const { knobs } = store;
  arrange();
  const used = SWITCHES.filter(isOn).length, all = SWITCHES.filter((knob) => !lacksGpu(knob)).length;
  const count = used === all ? "all" : `${used} of ${all}`;
  const hint = document.querySelector("#rp-opt-head h3 span");
  if (hint) write(hint, `${count} on`);
  const chip = /** @type {HTMLElement | null} */ (document.querySelector(".rp-slow-chip"));
  if (chip) {
    chip.hidden = !(knobs.slow_motion > 1);
    write(chip, `×${knobs.slow_motion}`);
    chip.title = `Slow motion: a step takes ${knobs.slow_motion} times as long. Times with “at ×” are as measured.`;
  }
  summary(knobs, `${count} optimisations on`);
  const share = along(controls.step_max_tokens, knobs.step_max_tokens);
  document.getElementById("rp-budget-row")?.style.setProperty("--rp-step", String(share));
}

document.addEventListener("click", ({ target }) => {
  const button = target instanceof Element && target.closest("#rp-more-button");
  if (!button) return;
  const shown = document.getElementById("rp-more-knobs").classList.toggle("rp-shown");
  button.setAttribute("aria-expanded", String(shown));
}, true);

function summary(knobs, count) {
  const policy = document.querySelector("#rp-more-button span");
  if (policy) write(policy, valueText("scheduling_policy", knobs.scheduling_policy));
  const words = document.querySelector("#rp-knobs-button span");
  if (!words) return;
  const budget = make("em", "", format.limit(knobs.prefill_max_tokens));
  words.replaceChildren("budget ", budget, ` · batch ${knobs.max_batch_size} · ${count}`);
}

/* Mark the former values of what was changed and not changed back, as a demo does at its end. Of changes before this
 * page was opened the first may be unknown, so that a knob at its default is not marked. */
function ticks() {
  /** Those of each knob, without any that were undone. @type {Record<string, any[]>} */
  const values = {};
  for (const [knob, [before, after]] of knobMarks().flatMap(({ changes }) => Object.entries(changes))) {
    const known = values[knob] ?? [before], at = known.indexOf(after);
    values[knob] = at < 0 ? [...known, after] : known.slice(0, at + 1);
  }
  for (const knob of KNOBS) {
    const control = document.getElementById(controls[knob]), [was, now] = values[knob]?.slice(-2) ?? [];
    const changed = now !== undefined && now !== settings.knobs[knob].default;
    control?.classList.toggle("rp-was", changed);
    if (changed && control?.querySelector("[type=range]")) {
      control.style.setProperty("--rp-was", String(along(controls[knob], was)));
    }
  }
}

/* The engine has reported its knobs. */
function take() {
  if (!underWay) { for (const knob of Object.keys(pending)) delete pending[knob]; }
  whenMounted(INPUTS, () => {
    show();
    ticks();
    sync();
  });
}
on("reset", take);
on("frame", (delta) => (delta.frames || []).some((frame) => frame.knobs && frame.knobs.length) && take());
