/* The panel of sampling settings, which opens from the prompt bar over the steps. Its controls are Gradio's.
 *
 * Input is sent in order, one request at a time, and collected while a request is in progress. An answer moves only
 * controls that have not been used since its request, and is not shown while there is more to send. */
import { ask } from "../shared/ask.js";
import { make, set, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { given } from "../shared/given.js";
import { fill, inputOf, isFilled, update, whenMounted } from "../shared/gradio.js";
import { whenReady } from "../shared/poll.js";
import { store } from "../shared/store.js";
import { tab } from "../shared/tab.js";

/* Where a value comes from, as the controls' tooltips say it. */
const SOURCES = {
  lane: "changed for this lane",
  tab: "changed for all lanes",
  model: "recommended by the model's author, in its generation_config.json",
  page: "this program's default",
};
const RETRY_MS = 1000, TIMEOUT_MS = 10000;
const panel = () => document.getElementById("rp-sampling"), opener = () => document.getElementById("sampling");
const idOf = (name) => given.sampling[name].control;
const within = (name) => document.getElementById(idOf(name));

let limit = null; // has Gradio ask for `limits`
let refusal = null; // the line for what was refused
let answer = null; // the newest one, while no request is in progress
let current = 0; // the lane that the controls are for
const waiting = []; // {lane, changes, reset, refill}, not sent yet
const touched = new Set(); // fields that were changed since the last request that refills them
let underWay = null;

function open(yes) {
  if (!panel()) return;
  panel().classList.toggle("rp-shown", yes);
  opener().setAttribute("aria-expanded", String(yes));
  const first = yes ? panel().querySelector("textarea") : opener();
  if (first) first.focus({ preventScroll: true });
}

// ---- the controls -----------------------------------------------------------------------------------------
const numberOf = (words) => Number((/\d+$/.exec(words) || [0])[0]); // of a lane, 0 for all

/* The lane that the list of lanes shows. */
function lane() {
  const list = inputOf("sampling-lane");
  return list ? numberOf(list.value) : 0;
}

const nameOf = (element) => Object.keys(given.sampling).find((name) => within(name) && within(name).contains(element));
const box = (name) => inputOf(idOf(name), "number") ?? inputOf(idOf(name));

function onInput(event) {
  const input = event.target, name = nameOf(input);
  if (!name || isFilled(event)) return;
  touched.add(name);
  const isText = !given.sampling[name].slider;
  if (isText || Number.isNaN(input.valueAsNumber)) return; // there is no value until it is complete
  const { min, max } = within(name).querySelector("input[type=range]");
  change(name, Math.min(Number(max), Math.max(Number(min), input.valueAsNumber)));
}

function onTyped({ target }) {
  const name = nameOf(target);
  if (name && !given.sampling[name].slider) change(name, target.value);
}

// ---- sending ----------------------------------------------------------------------------------------------
function change(name, value) {
  const last = waiting[waiting.length - 1];
  if (last && last.lane === lane() && !last.refill) last.changes[name] = value;
  else waiting.push({ lane: lane(), changes: { [name]: value } });
  send();
}

/* Fetch the settings of the chosen lane, and show them in all controls. */
function refill(of, reset) {
  current = of;
  touched.clear();
  waiting.push({ lane: of, changes: {}, reset, refill: true });
  send();
}

function send() {
  underWay = underWay || sendAll().finally(() => (underWay = null));
}

async function sendAll() {
  let whole = false;
  while (waiting.length) {
    const { lane, changes, reset = false, refill = false } = waiting.shift();
    const got = await post({ tab, lane, changes, reset });
    whole = whole || refill;
    if (!got) continue;
    refuse(Object.values(got.refused)[0] || "");
    const refused = Object.keys(got.refused);
    for (const name of refused) if (!waiting.some((more) => name in more.changes)) touched.delete(name);
    if (!waiting.length) show(got, lane, whole, refused);
  }
}

/* Returns the server's answer, retrying until there is one; null if it refuses the request, which is then shown. */
async function post(body) {
  for (;;) {
    await whenReady();
    try {
      return await ask("/sampling", { body, ms: TIMEOUT_MS });
    } catch ({ status, message }) {
      if (status >= 400 && status < 500) return refuse(message); // the poll shows that there is no answer
    }
    await new Promise((again) => setTimeout(again, RETRY_MS));
  }
}

// ---- showing ----------------------------------------------------------------------------------------------
function show(got, of, whole, refused) {
  answer = { ...got, lane: of };
  whenMounted(Object.keys(given.sampling).map(idOf), () => {
    sources();
    const fields = whole ? Object.keys(given.sampling) : refused;
    for (const name of fields) if (!touched.has(name)) fill(box(name), inControl(name, got.values[name]));
    limit();
  });
}

/* Say in each control's tooltip where its value comes from. */
function sources() {
  for (const [name, source] of Object.entries(answer.sources)) {
    set(within(name), { title: `${name}: ${SOURCES[source]}`, "data-source": source });
  }
}

function refuse(why) {
  refusal.hidden = !why;
  write(refusal, why);
  return null;
}

function button() {
  const words = answer.lane ? "As all lanes" : "Defaults";
  const value = answer.own ? `${words} (${answer.own} changed)` : words;
  return update({ value, interactive: answer.own > 0 });
}

/** Open or close the panel. */
export function toggle() {
  open(!panel().classList.contains("rp-shown"));
}

/** The end of the slider of an answer's length, and the button under the controls. */
export const limits = () => [update(store.info ? { maximum: store.info.max_model_len - 1 } : {}), button()];

/* A setting as its control shows it: texts one per line, null as nothing or as the number that stands for it. */
function inControl(name, value) {
  const { kind, off } = given.sampling[name];
  if (kind === "strings") return value.map((line) => line.replaceAll("\n", "\\n")).join("\n");
  return value ?? off ?? "";
}

on("reset", () => answer && limit());
on("replaced", () => limit && refill(lane(), false)); // it has other defaults, or has forgotten the tab's settings

/** Wait until the server knows what has been entered. */
export async function sent() {
  while (underWay) await underWay;
}

/** Handle a choice in the list of lanes, given by its text; Gradio reports it more than once. */
export function chosen(words) {
  if (numberOf(words) !== current) refill(numberOf(words), false);
}

/** @param {HTMLElement} element the panel's head
 * @param {{limit: () => void}} events `limit` has Gradio ask for `limits` */
export function mount(element, events) {
  limit = events.limit;
  element.querySelector("button").onclick = () => open(false);
  refusal = make("p", { id: "rp-sampling-said", role: "alert", hidden: true });
  const box = set(panel(), { role: "dialog", "aria-label": "Sampling" });
  box.append(refusal);
  box.addEventListener("input", onInput);
  box.addEventListener("typed", onTyped);
  box.addEventListener("keydown", (event) => {
    const listOpen = event.target.closest("#sampling-lane")?.querySelector(".options"); // it closes first
    if (event.key !== "Escape" || listOpen) return;
    event.stopPropagation();
    open(false);
  });
  box.addEventListener("click", ({ target }) => target.closest("#sampling-reset") && refill(lane(), true));
  refill(lane(), false);
}
