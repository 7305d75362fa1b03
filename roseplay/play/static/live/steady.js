/* Steady traffic: its switch and its figures. The server sends the requests; the switch asks for them and follows the
 * tab's polls. While it is on, a change of rate, kind, length or spacing applies at once. */
import { make, write } from "../shared/dom.js";
import { call } from "../shared/ask.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { given } from "../shared/given.js";
import { choose, chosenIn, fill, inputOf, isFilled, whenMounted } from "../shared/gradio.js";
import { press } from "../shared/legend.js";
import { tell } from "../shared/message.js";
import { poll } from "../shared/poll.js";
import { tab } from "../shared/tab.js";
import { nameStop, showStop, stopAt } from "./stops.js";

/** @import { Steady } from "../shared/types.js" */

const SETTLE_MS = 300, FOLLOWS = "#answer-length, #mix";

let row = null;
/** The newest figures. @type {Steady | null} */
let figures = null;
let wanted = null; // on or off, as requested, until a poll after the server's answer arrives
let unanswered = 0; // requests
let heard = 0; // polls since the last answer
let timer = 0;
let known = ""; // the plan that was requested here, or that is running
let expected = false; // whether it should be on, so that its end must be reported
let endedSeed = null; // the seed of the traffic whose end was reported

const isOn = () => wanted ?? Boolean(figures && figures.on);

const rate = () => inputOf("steady-rate-value")?.value || "";
const spacing = () => row.querySelector("[aria-pressed=true]").dataset.spacing;

function plan() {
  const length = inputOf("answer-length", "number")?.value;
  return { rate: Number(rate()) || rate(), spacing: spacing(), kind: chosenIn("mix"), max_new_tokens: length };
}

const planKey = () => Object.values(plan()).join();

// ---- asking -----------------------------------------------------------------------------------------------
function ask(turnOn) {
  wanted = expected = turnOn;
  known = planKey();
  clearTimeout(timer);
  timer = 0;
  unanswered++;
  call("steady", { tab, ...(turnOn ? plan() : { rate: 0 }) }).then(() => {
    unanswered--;
    heard = 0;
  });
  draw();
}

/* Where there is traffic, it goes on under the new plan. */
function onPlan() {
  clearTimeout(timer);
  timer = isOn() ? setTimeout(apply, SETTLE_MS) : 0;
}

function onInput(event) {
  const { target } = event;
  if (isFilled(event) || !(target instanceof Element)) return;
  const slides = target.closest("#steady-rate");
  if (slides) nameStop("steady-rate", stopAt("steady-rate"));
  if (slides || target.closest(FOLLOWS)) onPlan();
}

function onTyped({ target }) {
  if (!target.closest("#steady-rate-value")) return;
  const [least, most] = given.rates, value = Number(rate()), valid = value >= least && value <= most;
  if (!valid) tell(`The rate must be from ${least} to ${most}.`);
  showStop("steady-rate", valid ? value : stopAt("steady-rate"));
  onPlan();
}

function apply() {
  timer = 0;
  if (isOn() && planKey() !== known) ask(true);
}

const space = (chosen) => press(row.querySelectorAll("[data-spacing]"), ({ dataset }) => dataset.spacing === chosen);

// ---- following --------------------------------------------------------------------------------------------
/** @param {Steady | null} now */
function take(now) {
  if (!row) return;
  figures = now;
  // A poll that was in progress when the server answered may still report the previous state.
  if (!unanswered && !timer && ++heard > 1) settle(now);
  draw();
}

function settle(now) {
  wanted = null;
  const on = Boolean(now && now.on);
  if (expected && !on && (!now || (now.stopped && now.seed !== endedSeed))) {
    endedSeed = now && now.seed;
    const reason = now ? now.stopped : "the server no longer knew this tab";
    tell(`Steady traffic stopped: ${reason}.`);
  }
  expected = on;
  if (on) follow(now);
}

/* Make the controls show the running traffic: the page may have been reloaded, or a program may have started it. */
function follow({ rate, spacing, label, max_new_tokens: length }) {
  const runs = [rate, spacing, label, length].join();
  if (runs === known) return;
  known = runs;
  space(spacing);
  whenMounted(["steady-rate", "steady-rate-value", "answer-length", "mix"], () => {
    showStop("steady-rate", rate);
    fill(inputOf("answer-length", "number"), length);
    choose("mix", label);
  });
}

// ---- showing ----------------------------------------------------------------------------------------------
function draw() {
  const switches = row.querySelector("[role=switch]"), sent = note();
  switches.setAttribute("aria-checked", String(isOn()));
  switches.setAttribute("aria-label", `Steady traffic, ${rate()} requests per second`);
  if (!sent) return;
  const stopped = !isOn() && figures && figures.stopped;
  sent.parentElement.classList.toggle("rp-noted", isOn() || Boolean(stopped));
  sent.classList.toggle("rp-stopped-itself", Boolean(stopped));
  sent.title = stopped || "";
  write(sent, isOn() ? `${format.count(figures && figures.on ? figures.sent : 0)} sent` : stopped ? "stopped" : "");
}

/* The words in place of the slider's hint, made when Gradio has mounted it. */
function note() {
  const head = document.querySelector("#steady-rate .head");
  if (head && !head.querySelector(".rp-sent")) head.querySelector("label").after(make("span", "rp-sent"));
  return head && head.querySelector(".rp-sent");
}

on("own", (news) => take(news.steady || null));
on("start", (start) => {
  if (start) expected = false; // it ends with the engine that is being replaced
});
on("reset", () => {
  if (!row || !poll.held) return;
  figures = wanted = null; // a recording is shown: nothing is sent
  expected = false;
  draw();
});

/** @param {HTMLElement} element the row with the switch */
export function mount(element) {
  row = element;
  row.querySelector("[role=switch]").onclick = () => ask(!isOn());
  for (const button of row.querySelectorAll("[data-spacing]")) {
    button.onclick = () => {
      space(button.dataset.spacing);
      if (isOn()) ask(true);
    };
  }
  document.addEventListener("input", onInput);
  document.addEventListener("typed", onTyped);
  draw();
}
