/* Keeps the rail's controls and the engine's knobs in sync, even if another tab or a program sets a knob. A control is
 * not moved while the user is using it. */
import { make, write } from "../shared/dom.js";
import { call } from "../shared/endpoints.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { given, isGpu } from "../shared/given.js";
import { inputOf, update } from "../shared/gradio.js";
import { poll } from "../shared/poll.js";
import { keep, ofTab, stored } from "../shared/storage.js";
import { store } from "../shared/store.js";
import { knobMarks, valueText } from "./knobmarks.js";

/** @import { Steady } from "../shared/types.js" */

const IN_USE_MS = 700, AGAIN_MS = 150;
const { controls, settings } = given;
const ofKind = (...kinds) => Object.keys(controls).filter((knob) => kinds.includes(settings.knobs[knob].kind));
const SWITCHES = ofKind("switch"), CHOICES = ofKind("choice");
const SLIDERS = ofKind("whole", "number").filter((knob) => knob !== "slow_motion");
let ask = null, timer = 0, usedAt = 0, holding = false;

const inRail = (event) => event.target instanceof Element && Boolean(event.target.closest("#rp-rail"));

const listen = (name, listener) => document.addEventListener(name, listener, true);
listen("pointerdown", (event) => (holding = inRail(event)));
for (const end of ["pointerup", "pointercancel"]) {
  listen(end, () => {
    if (holding) usedAt = performance.now();
    holding = false;
  });
}
listen("input", (event) => {
  if (inRail(event)) usedAt = performance.now();
  if (event.target.dataset) event.target.dataset.typed = "1";
});
listen("focusin", (event) => {
  if (event.target.dataset) delete event.target.dataset.typed;
});

/* Whether somebody types into a box of the part with this id. */
function typing(id) {
  /** @type {any} */
  const at = document.activeElement;
  return Boolean(at?.closest?.(`#${id}`)) && /^(text|number)$/.test(at.type) && Boolean(at.dataset.typed);
}

const busy = () => holding || typing("rp-rail") || performance.now() - usedAt < IN_USE_MS;

function sync() {
  clearTimeout(timer);
  if (!ask || !Object.keys(store.knobs).length) return; // called again when there is one and the other
  if (busy() || !inputOf("slow-factor")) timer = setTimeout(sync, AGAIN_MS);
  else {
    ask();
    show();
  }
}

/**
 * @param {HTMLElement} _element nothing to be seen
 * @param {{sync: () => void}} events `sync` has Gradio move the controls to where `controlValues` says
 */
export function mount(_element, events) {
  ask = events.sync;
  sync();
  show();
}

// ---- what is asked for ------------------------------------------------------------------------------------
/** Values requested by the controls that no frame has confirmed yet. @type {Record<string, any>} */
const asked = {};
/**
 * Changes that are sent once the server has answered the previous ones.
 * @type {{knobs: object, answer: Promise<any>} | null}
 */
let waiting = null;
let line = Promise.resolve(), underWay = false;

/* Change a knob; resolves to all knobs, or to undefined if the server refuses it. While a slider is dragged, only its
 * newest position waits for the server's answer. */
function setKnob(knob, value) {
  asked[knob] = value;
  if (!waiting) {
    const knobs = {};
    line = line.then(() => change(knobs));
    waiting = { knobs, answer: line };
  }
  waiting.knobs[knob] = value;
  return waiting.answer;
}

async function change(knobs) {
  waiting = null;
  underWay = true;
  const answer = await call("set_knobs", { knobs });
  underWay = false;
  for (const [knob, value] of Object.entries(knobs)) {
    if (asked[knob] !== value) continue; // another one has been asked for since
    if (answer) asked[knob] = answer[knob];
    else delete asked[knob];
  }
  if (!answer) sync();
  return answer;
}

/* The engine has reported its knobs. */
function forget() {
  if (!underWay && !waiting) { for (const knob of Object.keys(asked)) delete asked[knob]; }
}

const now = (knob) => knob in asked ? asked[knob] : store.knobs[knob];

/** Handle a change of a switch, or of a slider of whole numbers; null is an emptied number box. */
export function changed(knob, value) {
  if (value !== null) setKnob(knob, typeof value === "number" ? Math.trunc(value) : value);
}

/** Handle a new position of a slider over stops; returns the text for its box. */
export function slid(knob, i) {
  const name = controls[knob], value = given.stops[name][i];
  if (value !== now(knob)) setKnob(knob, value);
  return nameStop(name, i);
}

const boxText = (value) => value === null ? "∞" : String(value);

/* Whether text was typed into a box since the last call. A box that loses the focus without it may show a value that
 * was changed elsewhere a moment ago; sending that would undo the change. */
function wasTyped(name) {
  const box = inputOf(name), was = Boolean(box && box.dataset.typed);
  if (was) delete box.dataset.typed;
  return was;
}

/** Handle a value typed into the box of such a slider; returns the new values of slider and box. */
export async function typed(knob, text) {
  if (wasTyped(`${controls[knob]}-value`) && text !== boxText(now(knob))) await setKnob(knob, text);
  return [place(controls[knob], now(knob)), boxText(now(knob))];
}

const SLOW_FACTOR = 10; // where the box has none

/* The factor in the box of slow motion, or 0. */
function factorIn(text) {
  const factor = Number(text.trim().replace(/^[×x]/i, ""));
  return factor > 1 && factor <= 1000 ? factor : 0;
}

/** Slow motion was switched on or off, with `text` in the box of its factor. */
export function slowed(on, text) {
  setKnob("slow_motion", on ? factorIn(text) || SLOW_FACTOR : 1);
}

/** Handle a typed factor of slow motion; returns the text for its box. While it is off, it stays off. */
export async function factorTyped(text) {
  const factor = factorIn(text), slow = now("slow_motion") > 1, was = wasTyped("slow-factor");
  if (was && (!factor || (slow && factor !== now("slow_motion")))) await setKnob("slow_motion", factor || text);
  return `×${now("slow_motion") > 1 ? now("slow_motion") : factor || SLOW_FACTOR}`;
}

// ---- sliders over a list of values, whose own value is an index -------------------------------------------
/** The text of the value at an index of a slider; screen readers hear it instead of the index. */
export function nameStop(name, i) {
  const value = given.stops[name][i];
  inputOf(name, "range")?.setAttribute("aria-valuetext", value === null ? "unlimited" : String(value));
  return value % 1 ? String(value) : format.limit(value);
}

/** The index whose value is nearest, as Stops.place() in Python finds it. */
export function place(name, value) {
  const stops = given.stops[name];
  if (value === null) return stops.length - 1;
  const far = (stop) => (stop === null ? Infinity : Math.abs(Math.log(stop / value)));
  return stops.reduce((best, stop, i) => (far(stop) < far(stops[best]) ? i : best), 0);
}

/* How far along its track a value stands, 0 to 1. */
function along(name, value) {
  if (given.stops[name]) return place(name, value) / (given.stops[name].length - 1);
  const range = inputOf(name, "range");
  return range ? (value - Number(range.min)) / (Number(range.max) - Number(range.min)) : 0;
}

/* A control's value, unless somebody types into it: Gradio calls `controlValues` a while after `ask`. */
const unlessTyped = (name, value) => (typing(name) ? update() : value);

/** The values for the controls, in the order of Controls.wire(). */
export function controlValues() {
  const { knobs } = store, slow = knobs.slow_motion > 1;
  const sliders = SLIDERS.flatMap((knob) => {
    const name = controls[knob], value = knobs[knob];
    if (!given.stops[name]) return [unlessTyped(name, value)];
    return [place(name, value), unlessTyped(`${name}-value`, boxText(value))];
  });
  const factor = slow ? unlessTyped("slow-factor", `×${knobs.slow_motion}`) : update();
  const chosen = CHOICES.map((knob) => knobs[knob]);
  return [...sliders, ...chosen, ...SWITCHES.map(switchState), slow, factor, ...traffic()];
}

/** What a knob needs and this engine lacks, or "". */
export function lacks(knob) {
  const { needs } = given.settings.knobs[knob];
  return needs === "a GPU" && !(store.info && isGpu(store.info.device)) ? needs : "";
}

/* What needs a GPU is among More settings unless there is one. */
function arrange() {
  const more = document.getElementById("rp-more-knobs"), last = document.getElementById("rp-slow-row");
  for (const knob of SWITCHES.filter((knob) => settings.knobs[knob].needs && store.info)) {
    const control = document.getElementById(controls[knob]), inMore = more?.contains(control);
    if (control && inMore && !lacks(knob)) last?.before(control);
    else if (control && !inMore && lacks(knob)) more?.append(control);
  }
}

const isOn = (knob) => store.knobs[knob] && !lacks(knob);

function switchState(knob) {
  const { needs, hint } = given.settings.knobs[knob], lacking = lacks(knob);
  if (!needs) return isOn(knob);
  return update({ value: isOn(knob), interactive: !lacking, info: lacking ? `needs ${lacking}` : hint });
}

const UNCHANGED = update(), KEPT = "roseplay-traffic";
/** @type {[string, "number"?][]} in the order of `traffic` */
const BOXES = [["answer-length", "number"], ["burst-size", "number"], ["steady-rate-value"]];
let pacedFor = ""; // the model
addEventListener("pagehide", () => { // for a reload
  const values = BOXES.map(([name, type]) => Number(inputOf(name, type)?.value));
  if (pacedFor) keep(KEPT, JSON.stringify({ model: pacedFor, values }), ofTab);
});

/* Answer length, burst size and rate when this tab was reloaded, if they were chosen for this model. */
function kept(name) {
  const { model, values } = JSON.parse(stored(KEPT, ofTab) ?? "{}");
  return model === name && values.every((value) => value > 0) ? values : null;
}

/** The steady traffic that runs. @type {Steady | null} */
let steady = null;

on("own", (own) => (steady = own.steady && own.steady.on ? own.steady : null));

/* Answer length, burst size, and the two parts of the rate. An answer gets at most half of the model's context. For a
 * model that is new to the page, the values are those of running traffic, or suit the model's speed. */
function traffic() {
  if (!store.info || poll.held) return [UNCHANGED, UNCHANGED, UNCHANGED, UNCHANGED]; // a recording sends nothing
  const { info, pace } = store, maximum = Math.max(16, Math.min(256, Math.floor(info.max_model_len / 32) * 16));
  if (pace && pacedFor !== info.model) {
    pacedFor = info.model;
    const [length, burst, rate] = kept(info.model) ?? [pace.answer, pace.burst, pace.rate];
    const sent = { rate, max_new_tokens: length, ...steady };
    const answer = update({ maximum, value: Math.min(sent.max_new_tokens, maximum) });
    return [answer, burst, place("steady-rate", sent.rate), String(sent.rate)];
  }
  const now = Number(inputOf("answer-length", "number")?.value);
  return [update({ maximum, ...(now > maximum && { value: maximum }) }), UNCHANGED, UNCHANGED, UNCHANGED];
}

// ---- what follows from the knobs --------------------------------------------------------------------------
function show() {
  const { knobs } = store;
  if (!document.getElementById("rp-rail") || !Object.keys(knobs).length) return;
  arrange();
  const count = `${SWITCHES.filter(isOn).length} of ${SWITCHES.filter((knob) => !lacks(knob)).length}`;
  const hint = document.querySelector("#rp-opt-head h3 span");
  if (hint) write(hint, `${count} on`);
  const chip = document.querySelector(".rp-slow-chip");
  if (chip) {
    chip.hidden = !(knobs.slow_motion > 1);
    write(chip, `×${knobs.slow_motion}`);
    chip.title = `Slow motion: a step takes ${knobs.slow_motion} times as long. Times with “at ×” are as measured.`;
  }
  summary(knobs, `${count} optimisations on`);
  const share = along(controls.step_max_tokens, knobs.step_max_tokens);
  document.getElementById("rp-budget-row")?.style.setProperty("--rp-step", String(share));
  for (const knob of SLIDERS) {
    const name = controls[knob], stops = given.stops[name];
    const words = knobs[knob] === null ? "unlimited" : String(knobs[knob]);
    if (stops) inputOf(name, "range")?.setAttribute("aria-valuetext", words);
  }
}

listen("click", ({ target }) => {
  const button = target instanceof Element && target.closest("#rp-more-button");
  if (!button) return;
  const shown = document.getElementById("rp-more-knobs").classList.toggle("rp-shown");
  button.setAttribute("aria-expanded", String(shown));
});

function summary(knobs, count) {
  const policy = document.querySelector("#rp-more-button span");
  if (policy) write(policy, valueText("scheduling_policy", knobs.scheduling_policy));
  const words = document.querySelector("#rp-knobs-button span");
  if (!words) return;
  const budget = make("em", "", format.limit(knobs.prefill_max_tokens));
  words.replaceChildren("budget ", budget, ` · batch ${knobs.max_batch_size} · ${count}`);
}

/* Mark the former values of what was changed. */
function ticks() {
  for (const mark of knobMarks()) {
    for (const [knob, [before]] of Object.entries(mark.changes)) {
      const control = document.getElementById(controls[knob]);
      control?.classList.add("rp-was");
      if (SLIDERS.includes(knob)) control?.style.setProperty("--rp-was", String(along(controls[knob], before)));
    }
  }
}

on("reset", () => {
  forget();
  show();
  sync();
});
on("lock", () => { // a lock that ends enables every control
  if (!store.info) return;
  for (const knob of SWITCHES.filter(lacks)) {
    const box = inputOf(controls[knob]);
    if (box) box.disabled = true;
  }
});
on("frame", (delta) => {
  if (!(delta.frames || []).some((frame) => frame.knobs && frame.knobs.length)) return;
  forget();
  show();
  ticks();
  sync();
});
