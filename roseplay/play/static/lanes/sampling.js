/* The panel of sampling settings, which opens from the prompt bar over the steps. Its controls are Gradio's.
 *
 * Input is sent in order, one request at a time, and collected while a request is in progress. An answer moves only
 * controls that have not been used since its request, and is not shown while there is more to send. */
import { ask } from "../shared/ask.js";
import { make, set, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { inputOf, update } from "../shared/gradio.js";
import { whenReady } from "../shared/ready.js";
import { store } from "../shared/store.js";
import { tab } from "../shared/tab.js";

const FIELDS = {
  system: "system",
  temperature: "temperature",
  top_p: "top-p",
  top_k: "top-k",
  min_p: "min-p",
  repetition_penalty: "repetition",
  max_new_tokens: "new-tokens",
  seed: "seed",
  stop: "stop",
  priority: "priority",
  tenant: "tenant",
};
/* Where a value comes from, as the controls' tooltips say it. */
const SOURCES = {
  lane: "changed for this lane",
  tab: "changed for all lanes",
  model: "recommended by the model's author, in its generation_config.json",
  page: "this program's default",
};
const LEFT = new Set(["seed", "priority", "tenant"]); // read when complete: at Enter, or when they lose the focus
const RETRY_MS = 1000, TIMEOUT_MS = 10000;
const panel = () => document.getElementById("rp-sampling"), opener = () => document.getElementById("sampling");
const within = (name) => document.getElementById(`sampling-${FIELDS[name]}`);

let fill = null; // makes Gradio move the controls to what `shown` returns
let said = null; // the line for what was refused
let answer = null; // the newest one, while no request is in progress
let asked = 0; // the lane that the controls are for
const waiting = []; // {lane, changes, reset, refill}, not sent yet
const touched = new Set(); // fields that were changed since the last request that refills them
const typing = new Set(); // fields with incomplete text
let underWay = null;

function open(yes) {
  if (!panel()) return;
  sources();
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

const nameOf = (element) => Object.keys(FIELDS).find((name) => within(name) && within(name).contains(element));
const box = (name) => within(name).querySelector("textarea, input[type=number], input");

/* `input`: the element of a control that the user has changed. */
function typed(name, input) {
  touched.add(name);
  if (LEFT.has(name)) return typing.add(name);
  const number = input.type === "number" || input.type === "range";
  if (number && Number.isNaN(input.valueAsNumber)) return; // an emptied number box: there is none until there is one
  if (!number) return change(name, input.value);
  const { min, max } = within(name).querySelector("input[type=range]");
  change(name, Math.min(Number(max), Math.max(Number(min), input.valueAsNumber)));
}

function left(name) {
  if (typing.delete(name)) change(name, box(name).value);
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
  asked = of;
  touched.clear();
  typing.clear();
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
  answer = { ...got, lane: of, fields: whole ? Object.keys(FIELDS) : refused };
  sources();
  fill();
}

/* Say in each control's tooltip where its value comes from. Gradio may make the controls after the first answer. */
function sources() {
  for (const [name, source] of Object.entries(answer ? answer.sources : {})) {
    const control = within(name);
    if (control) set(control, { title: `${name}: ${SOURCES[source]}`, "data-source": source });
  }
}

function refuse(why) {
  said.hidden = !why;
  write(said, why);
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

/** The values for the controls and the button under them: the answer's, or what the user has entered since. */
export function shown() {
  sources();
  const values = Object.keys(FIELDS).map((name) => {
    const keep = touched.has(name) || !answer.fields.includes(name);
    const value = keep ? {} : { value: inControl(name, answer.values[name]) };
    return update({ ...value, ...(name === "max_new_tokens" && longest()) });
  });
  return [...values, button()];
}

/* A setting as its control shows it: stop strings one per line, null as nothing or as 0. */
function inControl(name, value) {
  if (name === "stop") return value.map((line) => line.replaceAll("\n", "\\n")).join("\n");
  return value ?? (LEFT.has(name) ? "" : 0);
}

/* Where the slider of an answer's length ends. */
const longest = () => (store.info ? { maximum: store.info.max_model_len - 1 } : {});
on("reset", () => answer && fill());
on("replaced", () => fill && refill(lane(), false)); // it has other defaults, or has forgotten the tab's settings

/** Wait until the server knows what has been typed. */
export async function sent() {
  for (const name of [...typing]) left(name);
  while (underWay) await underWay;
}

/** Handle a choice in the list of lanes, given by its text; Gradio reports it more than once. */
export function chosen(words) {
  if (numberOf(words) !== asked) refill(numberOf(words), false);
}

/**
 * @param {HTMLElement} element the panel's head
 * @param {{show: () => void}} events `show` has Gradio put into the controls what `shown` returns
 */
export function mount(element, events) {
  fill = events.show;
  element.querySelector("button").onclick = () => open(false);
  said = make("p", { id: "rp-sampling-said", role: "alert", hidden: true });
  const box = set(panel(), { role: "dialog", "aria-label": "Sampling" });
  box.append(said);
  box.addEventListener("input", ({ target }) => nameOf(target) && typed(nameOf(target), target));
  box.addEventListener("focusout", ({ target }) => nameOf(target) && left(nameOf(target)));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && nameOf(event.target)) left(nameOf(event.target));
    const listOpen = event.target.closest("#sampling-lane")?.querySelector(".options"); // it closes first
    if (event.key !== "Escape" || listOpen) return;
    event.stopPropagation();
    open(false);
  });
  box.addEventListener("click", ({ target }) => target.closest("#sampling-reset") && refill(lane(), true));
  refill(lane(), false);
}
