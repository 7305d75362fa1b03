/* The strip under the header: what happened, in one or two lines from the server; what limits the engine; and how much
 * time the charts show. While a demo is playing, it shows the captions. Its height never changes. */
import { make, makeButton, phone, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { press, segmented } from "../shared/legend.js";
import { poll } from "../shared/poll.js";
import { drawn, plain } from "../shared/sentence.js";
import { keep, ofTab, stored } from "../shared/storage.js";
import { store } from "../shared/store.js";
import { clock, time } from "../shared/time.js";
import { openDemoList } from "./demolist.js";
import { demos } from "./demos.js";
import { termButton } from "./terms.js";
import { SPANS, view } from "./view.js";

import "./rings.js";

/** @import { Delta, Said, Sentence } from "../shared/types.js" */

const EVERY_MS = 500, QUIET_MS = 60000, USED = "roseplay-used";
const LEAST_SHARE = 0.6; // of the steps, of what limits the engine
const LIMITS = { blocks: "KV", host: "overhead" }; // the others are called what they are
/** @type {Sentence[]} */
const PURPOSE = [
  [["Four chats share one engine.", "bold"], [" Burst adds many requests; the sliders decide which wait.", ""]],
  [["Show me plays it: four answers, a burst, the pause it causes, and the same burst with one slider moved.", ""]],
];

/** @type {Sentence[]} */
const OF_A_SERVER = [
  [["Four chats share one server.", "bold"], [" Burst adds many more requests: watch the tokens of all chats.", ""]],
  [["Latencies are measured here; what the server does not report is listed, with the reasons.", ""]],
];

/** @type {HTMLElement | null} */
let box = null;
let lines = [], progress = null, answers = null, limit = null, share = null, next = null, following = null, ended = "";
/** @type {HTMLElement | null} */
let focused = null; // before a demo
/** @type {Said | null} */
let story = null;
let used = false; // whether there was any prompt since the page was opened
let known = false; // whether this tab shows what was before its latest reset
let mine = stored(USED, ofTab) !== null; // the same, with somebody at this tab; others show no earlier sentence
let busy = 0; // when something ran last

/** @param {HTMLElement} element */
export function mount(element) {
  box = element.querySelector(".rp-strip");
  lines = [make("p"), make("p")];
  progress = make("div", { className: "rp-story-course", hidden: true });
  answers = make("div", { className: "rp-story-answers", role: "group", "aria-label": "Your guess", hidden: true });
  const text = make("div", { className: "rp-story-text", role: "status" }, ...lines);
  const takes = make("small"), values = { className: "rp-show-me rp-primary", onclick: () => demos.start() };
  const first = makeButton("Show me", values, takes, make("kbd", "", "D"));
  on("demos offered", () => write(takes, demos.list[0]?.seconds ? format.minutes(demos.list[0].seconds) : ""));
  following = makeButton("", { className: "rp-show-me", onclick: () => demos.start(nextDemo()?.name) });
  box.append(
    ...(demos.list.length ? [make("div", "rp-story-first", first, menu("All demos"))] : []),
    make("div", "rp-story-main", text, progress, answers),
    limitCell(),
    spanCell(),
    make("div", "rp-story-menu", following, ...(demos.list.length ? [menu("Show me")] : [])),
    controls(),
  );
  show();
  setInterval(tick, EVERY_MS);
}

function menu(words) {
  const onclick = ({ currentTarget }) => openDemoList(currentTarget);
  return makeButton(words, { className: "rp-show-me", "aria-haspopup": "dialog", onclick });
}

/* The one in the list after the one that has ended. */
function nextDemo() {
  const here = demos.list.filter(({ absent }) => !absent), at = here.findIndex(({ name }) => name === ended);
  return at < 0 ? undefined : here[at + 1];
}

function limitCell() {
  limit = make("b");
  const label = termButton("limited by", { term: "limited by" });
  share = make("small");
  return make("div", "rp-story-limit", make("span", "", label), make("span", "", limit, share));
}

function spanCell() {
  const words = SPANS.map((ms, i) => `${ms / 1000}${i === SPANS.length - 1 ? " s" : ""}`);
  const spans = segmented("time shown", words, (word) => view.setSpan(parseInt(word) * 1000), SPANS.indexOf(view.span));
  on("zoom", () => press(spans.children, (_, i) => SPANS[i] === view.span));
  return make("div", "rp-story-span", make("span", "", "time shown"), spans);
}

function controls() {
  next = makeButton("Next", { className: "rp-show-me rp-primary", onclick: () => demos.next() }, make("kbd", "", "N"));
  const stop = makeButton("Stop", { className: "rp-show-me", onclick: demos.end }, make("kbd", "", "Esc"));
  return make("div", { className: "rp-story-controls", role: "group", "aria-label": "Demo" }, next, stop);
}

// ---- what it says -----------------------------------------------------------------------------------------
on("reset", (/** @type {Delta} */ { snapshot }) => {
  known = mine || poll.held;
  story = (known && snapshot?.story) || null;
  use(Boolean(known && snapshot?.requests?.length));
  show();
});

on("frame", (/** @type {Delta} */ { frames, reset }) => {
  if (reset && !known) return; // what ran before the tab was opened
  const before = story, unused = !used;
  for (const frame of frames || []) {
    story = frame.story || story;
    if (frame.requests?.some(([, event]) => event === "submitted")) use(true);
  }
  if (story !== before || (unused && used)) show();
});

function use(now) {
  used = now;
  if (!used || mine || poll.held || !navigator.userActivation?.hasBeenActive) return;
  mine = true;
  keep(USED, "1", ofTab);
}

on("pair", show);
on("demo", () => {
  if (demos.own && !box.contains(document.activeElement)) focused = /** @type {any} */ (document.activeElement);
  const before = box.dataset.about;
  ended = demos.caption?.name ?? ended;
  show();
  if (phone.matches && before === "demo" && !demos.caption) box.scrollIntoView(); // its last sentence
  if (demos.own && demos.caption.scene === 0) next.focus({ preventScroll: true });
  if (!demos.own && focused) {
    focused.focus?.({ preventScroll: true });
    focused = null;
  }
});

/** What it shows: a demo, the first screen, or what happened. @returns {{about: string, sentences: Sentence[]}} */
function state() {
  const { caption, elsewhere } = demos;
  if (caption) return { about: "demo", sentences: [caption.caption] };
  const other = `Another tab is playing a demo. It ends in about ${elsewhere} s.`;
  if (elsewhere) return { about: "elsewhere", sentences: [[[other, ""]]] };
  if (story && (used || clock() - story.t < QUIET_MS)) return { about: story.about, sentences: story.lines };
  if (used || poll.held || !demos.list.length) return { about: "", sentences: [] };
  return { about: "purpose", sentences: store.bootId ? demosHere() ? PURPOSE : OF_A_SERVER : [] };
}

/* Demos need to set knobs and to empty the cache. */
const demosHere = () => !store.absent.knobs && !store.absent.clear_cache;

function show() {
  if (!box) return;
  const { about, sentences } = state();
  box.dataset.about = about;
  box.dataset.burst = about === "burst" ? String(story.burst) : "";
  const upcoming = about === "after demo" && nextDemo();
  following.hidden = !upcoming;
  if (upcoming) write(following, `Next demo: ${upcoming.title}`);
  const compares = document.querySelector("#rp-live[data-pair=open]"); // a link may have opened it
  document.body.classList.toggle("rp-first", about === "purpose" && demosHere() && !compares);
  document.body.classList.toggle("rp-guided", about === "demo");
  lines[0].parentElement.setAttribute("aria-live", about === "steady" ? "off" : "polite");
  lines.forEach((line, i) => {
    if (plain(sentences[i] || []) !== line.textContent) line.replaceChildren(...drawn(sentences[i] || []));
  });
  ask(demos.own && demos.caption?.answers || []);
  progress.hidden = about !== "demo" || !answers.hidden;
  if (demos.caption) course();
  fit();
}

/* A button for each answer to the caption's question; the demo goes on with the first that is pressed.
 * @param {string[]} texts */
function ask(texts) {
  if (texts.join() === answers.dataset.of) return;
  answers.dataset.of = texts.join();
  answers.hidden = !texts.length;
  answers.replaceChildren(...texts.map((text, i) => {
    const values = { className: "rp-show-me", onclick: () => demos.next(i + 1) };
    return makeButton(text, values, make("kbd", "", String(i + 1)));
  }));
}

/* A dot for each caption, and the demo's progress. */
function course() {
  const { scene, scenes, title, seconds, begun, guess } = demos.caption;
  const dots = Array.from({ length: scenes }, (_, i) => make("i", i < scene ? "rp-done" : i === scene ? "rp-now" : ""));
  const elapsed = Math.min(seconds, Math.max(0, (clock() - begun) / 1000));
  const passed = make("small", "", `${format.minutes(elapsed)} of ${format.minutes(seconds)}`);
  const guessed = guess ? [make("span", "", `your guess: ${guess}`)] : [];
  progress.replaceChildren(...dots, make("span", "", title), passed, ...guessed);
}

/* A sentence that is too long for its line is set smaller. */
function fit() {
  for (const line of lines) {
    line.classList.remove("rp-tight");
    line.classList.toggle("rp-tight", line.scrollWidth > line.clientWidth);
  }
}

function tick() {
  if (document.hidden || !box.clientWidth) return;
  const limiter = limitIn(view.latest(time.now()));
  write(limit, limiter ? LIMITS[limiter.name] || limiter.name : "–");
  write(share, limiter ? format.percent(100 * limiter.share, 0) : "");
  if (store.open.size || demos.elsewhere) busy = clock();
  if (used && !mine && !poll.held && clock() - busy > QUIET_MS) { // the first screen again
    [used, story] = [false, null];
    show();
  }
  box.classList.toggle("rp-quiet", !demos.caption && Boolean(story) && clock() - story.t > QUIET_MS);
  if (demos.caption) course();
}

/** What stopped the next admission or token in most steps of a stretch of time, and its share of them; null if nothing
 * has a majority. The server reports it for each step.
 * @param {{x0: number, x1: number}} window
 * @returns {{name: string, share: number} | null} */
function limitIn({ x0, x1 }) {
  const { steps } = store, counts = new Map();
  let total = 0;
  for (let i = steps.end - 1; i >= steps.first; i--) {
    const slot = i & steps.mask, x = time.x(steps.t1[slot]), name = steps.limit[slot];
    if (x < x0) break;
    if (x > x1 || !name) continue;
    counts.set(name, (counts.get(name) || 0) + 1);
    total++;
  }
  const [name, most] = [...counts].reduce((best, one) => (one[1] > best[1] ? one : best), ["", 0]);
  return total && most / total >= LEAST_SHARE ? { name, share: most / total } : null;
}
