/* The chats. The server keeps a tab's lanes; for each, this page keeps the stamp of what it has. Every poll sends the
 * stamps, so that a lost answer or a reload loses nothing. */
import { write } from "../shared/dom.js";
import { call } from "../shared/ask.js";
import { on } from "../shared/events.js";
import { fill, inputOf } from "../shared/gradio.js";
import { tell } from "../shared/message.js";
import { pointing } from "../shared/pointing.js";
import { keep, ofTab, stored } from "../shared/storage.js";
import { tab } from "../shared/tab.js";
import { Lane } from "./lane.js";
import { findTurnsBy } from "./picking.js";
import { sent } from "./sampling.js";
import { suggestions } from "./suggestions.js";
import { OVER } from "./turn.js";

/** @import { Delta, Start } from "../shared/types.js" */

const KEY = "roseplay-lanes", DEFAULT = 4, MOST = 8;
const HEIGHTS = [0, 304, 304, 304, 304, 400, 400, 500, 500];
const WORDS = "zero one two three four five six seven eight".split(" ");
const LOOK_MS = 100, LONGEST_MS = 5000; // how often and how long to look whether all chats stream
const ALL = "0"; // in the list of lanes to send to; the others are their numbers

/** @type {Lane[]} */
const lanes = [];
let box = null, to = ALL, showLists = () => {};
let count = Number(stored(KEY, ofTab));
if (!(count >= 1 && count <= MOST)) count = DEFAULT;

/** Build the lanes in `element`.
 * @param {{restore: () => void}} events `restore` has Gradio show how many lanes there are, and which are asked */
export function mount(element, events) {
  box = element.querySelector(".rp-lanes");
  const dots = element.querySelector(".rp-dots"), status = element.querySelector(".rp-said");
  const acts = {
    ask: (lane, prompt) => send(prompt, [lanes[lane - 1]]),
    edit: (lane, prompt) => ask("submit", { lane, prompt, edit: true }),
    again: (lane) => ask("regenerate", { lane }),
    newChat: begin,
    clear: (lane) => call("new_chat", { tab, lane }),
    takeBack: (lane) => {
      giveBack(lane.next.at(-1));
      lane.plan(lane.next.slice(0, -1));
    },
    halt: (lane) => call("stop", { tab, lane }),
    say: (words) => write(status, words),
  };
  for (let i = 0; i < MOST; i++) lanes.push(new Lane(i, acts));
  box.append(...lanes.map((lane) => lane.root));
  dots.append(...lanes.map((lane) => lane.dot));
  findTurnsBy((rid) => lanes.flatMap((lane) => lane.turns).find((turn) => turn.rid === rid));
  box.addEventListener("scroll", onSwipe, { passive: true });
  box.addEventListener("click", onClick);
  showLists = events.restore;
  onSwipe();
  show();
  showLists();
}

on("own", (tabNews) => {
  for (const news of tabNews.lanes || []) lanes[news.lane - 1]?.take(news);
  for (const lane of lanes) {
    lane.figures(performance.now());
    const [prompt, ...others] = lane.next;
    if (prompt === undefined || inDemo() || lane.awaited || !OVER.has(lane.news?.state)) continue;
    lane.plan(others);
    send(prompt, [lane]);
  }
});

on("connection", () => {
  for (const lane of lanes) lane.figures(performance.now(), true);
});

/** @type {string | null} */
let boot = null;
on("reset", (/** @type {Delta} */ delta) => {
  const restarted = boot !== null && boot !== delta.boot_id;
  boot = delta.boot_id;
  for (const lane of restarted ? lanes : []) lane.loseAnswer();
  for (const lane of lanes) lane.suggest(); // the model may be another one
});

on("start", (/** @type {Start | null} */ start) => {
  if (!start || boot === null) return; // nothing was asked yet
  const words = `The engine was restarted with ${start.model} while this answer was in progress.`;
  for (const lane of lanes) lane.loseAnswer(words);
});

/* A selected request dims the lanes of all others; selected as a whole, or only pointed at, its lane is outlined. */
function showPicked() {
  const { rid, selected } = pointing, of = (lane) => lane.news?.rid ?? null;
  const dims = selected !== null && lanes.some((lane) => of(lane) === selected.rid);
  const whole = selected !== null && selected.step === null && selected.token === undefined;
  for (const lane of lanes) {
    lane.root.classList.toggle("rp-dimmed", dims && of(lane) !== selected.rid);
    lane.root.classList.toggle("rp-selected", whole && lane.turns.some((turn) => turn.rid === selected.rid));
    lane.root.classList.toggle("rp-on", rid !== null && of(lane) === rid);
  }
}
on("hover", showPicked);
on("select", showPicked);

// ---- how many ---------------------------------------------------------------------------------------------
const everyLane = () => count > 2 ? `all ${WORDS[count]} lanes` : count === 2 ? "both lanes" : "the lane";

function show() {
  box.dataset.count = String(count);
  const keys = to === ALL ? `1–${count} focus a lane` : "Esc: all lanes";
  document.body.style.setProperty("--rp-lanes-height", `${HEIGHTS[count]}px`);
  document.body.style.setProperty("--rp-lanes-keys", `"${count > 1 ? keys : ""}"`);
  for (const lane of lanes) {
    lane.root.hidden = lane.dot.hidden = lane.index >= count;
    lane.root.classList.toggle("rp-asked", to === String(lane.number));
  }
  const prompt = promptBox();
  if (prompt) prompt.placeholder = `Ask ${to === ALL ? everyLane() : `lane ${to}`}…`;
  else requestAnimationFrame(show); // Gradio mounts it later
}

/** For the drop-down list of lane counts; returns the new value of "send to". */
export function showLanes(chosen, sendTo) {
  count = Number(chosen);
  to = Number(sendTo) > count ? ALL : sendTo;
  keep(KEY, String(count), ofTab);
  show();
  return to;
}

/** Set the lanes to which prompts go: all or one of them, which is shown. */
export function sendTo(chosen = ALL) {
  showLanes(Math.max(count, Number(chosen)), chosen);
  showLists();
}

/* What is typed after a click in a lane goes to that lane. */
function onClick({ target }) {
  const lane = lanes.find(({ root }) => root.contains(target));
  if (lane && !target.closest("button, form") && getSelection().isCollapsed) sendTo(String(lane.number));
}

/* Begin a chat in the first lane without one. */
function begin() {
  const lane = lanes.find(({ turns, awaited }) => !turns.length && !awaited);
  if (!lane) return tell("All lanes have a chat: clear one of them.");
  sendTo(String(lane.number));
  focusLane(lane.number);
  promptBox().focus();
}

/** How many lanes there are, and which are asked. */
export const lanesShown = () => [String(count), to];

/* Call an endpoint once the server knows the settings typed so far. */
const ask = (endpoint, values) => sent().then(() => call(endpoint, { tab, ...values }));

const promptBox = () => inputOf("prompt");

/* A demo puts its own chats into the lanes. */
const inDemo = () => document.body.classList.contains("rp-guided");

/* Return a prompt to the prompt bar, before what was typed meanwhile. */
function giveBack(prompt) {
  const bar = promptBox();
  fill(bar, [prompt, bar.value].filter(Boolean).join(" "));
}

/* Ask lanes. */
async function send(prompt, asked) {
  for (const lane of asked) lane.awaited = true;
  const result = await ask("submit", { prompt, lane: asked.map(({ number }) => number) });
  if (result !== undefined) return;
  for (const lane of asked) lane.awaited = false;
  giveBack(prompt);
}

/** For Enter and Send: empties the prompt bar. A lane that is answering is asked when it has ended. */
export function onSend() {
  const bar = promptBox(), prompt = bar.value, asked = to === ALL ? lanes.slice(0, count) : [lanes[Number(to) - 1]];
  const later = prompt.trim() && !inDemo() ? asked.filter((lane) => lane.busy) : [];
  for (const lane of later) lane.plan([...lane.next, prompt]);
  fill(bar, "");
  if (later.length < asked.length) send(prompt, asked.filter((lane) => !later.includes(lane)));
}

/** Ask none of the prompts that wait for their lanes. */
export const forget = () => lanes.forEach((lane) => lane.plan([]));

/** Ask each empty lane its first suggestion. Resolves when all of them stream, or after five seconds. */
export async function askSuggested() {
  const empty = lanes.slice(0, count).filter((lane) => !lane.turns.length), begun = performance.now();
  for (const lane of empty) send(suggestions(lane.index)[0], [lane]);
  while (empty.some(({ news }) => !news?.tokens) && performance.now() - begun < LONGEST_MS) {
    await new Promise((done) => setTimeout(done, LOOK_MS));
  }
}

function onSwipe() {
  const at = Math.round(box.scrollLeft / Math.max(1, box.clientWidth));
  for (const lane of lanes) lane.dot.classList.toggle("rp-on", lane.index === at);
}

// ---- for others -------------------------------------------------------------------------------------------
/** Whether a request was sent from this tab's lanes. */
export const ownsRequest = (rid) => lanes.some((lane) => lane.turns.some((turn) => turn.rid === rid));

/** What this page has of its lanes, for the next poll. */
export const stamps = () => lanes.map((lane) => lane.have).filter(Boolean).join(",");

/** Put the keyboard's focus on a lane, from 1. */
export function focusLane(number) {
  const lane = lanes[number - 1];
  if (!lane || number > count) return;
  lane.root.scrollIntoView({ block: "nearest", inline: "start" });
  lane.root.focus({ preventScroll: true });
}
