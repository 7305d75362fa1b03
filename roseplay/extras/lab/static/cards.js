/* The scenarios, each with a small drawing of its load, and a card for a file of requests in place of a scenario's.
 * Only one can be chosen; arrow keys work as in a radio group. */
import { ask } from "page/shared/ask.js";
import { make, makeButton, onArrows, svg, write } from "page/shared/dom.js";
import { on } from "page/shared/events.js";
import { format } from "page/shared/format.js";
import { explain, given } from "page/shared/given.js";
import { locked } from "page/shared/lock.js";
import { whenReady } from "page/shared/poll.js";
import { stored } from "page/shared/storage.js";
import { takeFiles } from "page/shared/takefiles.js";
import { restore } from "./files.js";
import { followJob } from "./job.js";
import { setMode } from "./mode.js";
import { adoptCatalogue, chooseScenario } from "./plan.js";
import { ARMS, lab, LAST_SCENARIO, measuring, say, scenarioNamed, shownResult, tell } from "./state.js";

// ---- the drawings, 64 x 34 --------------------------------------------------------------------------------
const box = (x, y, width, height, color) => ["rect", { x, y, width, height, fill: `var(--rp-${color})` }];
const outlined = (x, y, size) => ["rect", { x, y, width: size, height: size, fill: "none", stroke: "var(--rp-ink3)" }];
const line = (d, color, more = {}) => ["path", { d, fill: "none", stroke: `var(--rp-${color})`, ...more }];
const shape = (d, fill, more = {}) => ["path", { d, fill: `var(--rp-${fill})`, ...more }];
const many = (count, draw) => Array.from({ length: count }, (_, i) => draw(i));

/* By the scenario's name. */
const DRAWINGS = {
  admission: [
    ...many(14, (i) => line(`M${7.5 + i * 1.6} 4v11`, "ink3")),
    box(6, 21, 52, 3, "decode"),
    box(6, 27, 52, 3, "decode"),
  ],
  "batched-prefill": [
    ...many(4, (i) => box(4, 3 + i * 7.5, 12, 5, "ink3")),
    line("M22 17h10", "ink3"),
    box(38, 3, 14, 27.5, "ink"),
  ],
  dedup: [
    ...many(5, (i) => box(4, 2 + i * 6.4, 22, 4.4, "ink3")),
    line("M31 17h8", "ink3"),
    box(43, 14.4, 17, 5, "ink"),
  ],
  "token-budget": [
    box(4, 4, 10, 27, "ink3"),
    ...many(4, (i) => box(20 + i * 10.5, 17, 8, 14, "ink")),
    line("M17 14.5h46", "rose", { "stroke-width": 1.25, "stroke-dasharray": "4 3" }),
  ],
  "batched-append": [
    ...many(24, (i) => box(2 + (i % 6) * 4.6, 6 + Math.floor(i / 6) * 6, 3, 4, "ink3")),
    box(40, 6, 20, 22, "ink"),
  ],
  "shared-head": [
    box(4, 2, 17, 30, "ink"),
    ...[20, 33, 26, 36, 15].map((w, i) => box(24, 2 + i * 6.4, w, 4.4, "ink3")),
  ],
  "long-context": [...many(5, (i) => box(4, 4 + i * 6.2, 56, 2, "decode")), box(21, 2, 22, 30, "ink")],
  "kv-pressure": [
    box(4, 4, 56, 27, "free"),
    shape("M4 31 20 23 34 11 42 4h18v27z", "ink3"),
    shape("M44 1.5l5 5-5 5-5-5z", "surface", { stroke: "var(--rp-ink)" }),
  ],
  poisson: [5, 9, 11, 20, 23, 31, 33, 36, 47, 49, 56].map((x) => line(`M${x + 0.5} 7v20`, "ink3")),
  "fair-tenants": many(7, (i) => box(4 + i * 8.2, i % 3 ? 4 : 18, 5.6, 12, i % 3 ? "ink3" : "rose")),
  "shortest-first": [8, 14, 22, 34, 56].map((w, i) => box(4, 2 + i * 6.4, w, 4.4, i < 4 ? "ink3" : "ink")),
  "prefill-interval": many(12, (i) => i % 5 ? box(4 + i * 4.8, 24, 3, 6, "decode") : box(4 + i * 4.8, 4, 3, 26, "ink")),
  speculation: [
    ...many(5, (i) => box(4 + i * 7, 5, 5, 5, "ink")),
    ...many(3, (i) => box(4 + i * 7, 24, 5, 5, "ink")),
    ...many(2, (i) => outlined(25.5 + i * 7, 24.5, 4)),
    line("M14 12v9", "ink3"),
    box(44, 24, 5, 5, "decode"),
  ],
  "structured-output": many(6, (i) => [
    line(`M${6 + i * 10} 8v18`, "ink3"),
    box(3 + i * 10, i % 2 ? 20 : 10, 6, 4, i % 2 ? "ink" : "decode"),
  ]).flat(),
  other: many(6, (i) => box(5 + i * 9.5, 24 - ((i * 7) % 17), 6, 7 + ((i * 7) % 17), "ink3")),
};
DRAWINGS["pinned-prefix"] = DRAWINGS["shared-head"];
DRAWINGS["max-overtakes"] = DRAWINGS["shortest-first"];

const drawing = (name) => svg(64, 34, ...(DRAWINGS[name] || DRAWINGS.other));

// ---- the cards --------------------------------------------------------------------------------------------

let group = null, count = null, showNumbers = null, loaded = false;

/** @param {{numbers: () => void}} events `numbers` has Gradio's boxes show the plan's numbers */
export function mount(element, events) {
  group = element.querySelector("[role=radiogroup]");
  count = element.querySelector("h3 span");
  showNumbers = events.numbers;
  onArrows(group, () => cards().filter((card) => card.dataset.name !== lab.catalogue.own.name)); // that asks for a file
  on("lab", (what) => {
    if (what === "library") fill();
    if (what === "plan") mark();
    if (what === "fork") takeFork();
    if (what === "traffic" || what === "plan") showFile();
    if (["document", "numbers", "mode"].includes(what)) boxes();
  });
  const terms = Object.entries(given.tabs.lab.terms).filter(([id]) => id.startsWith("lab-"));
  explain(Object.fromEntries(terms), enableButtons);
  whenReady().then(load);
}

/* Load the scenarios; returns whether they have come. */
async function loadCatalogue() {
  try {
    lab.catalogue = await ask("/lab");
  } catch (error) {
    say(error);
    return false;
  }
  say("");
  tell("library");
  return true;
}

/* Load the scenarios; then show this browser's newest result, or the one that the address names. */
async function load() {
  if (!await loadCatalogue()) return;
  const last = stored(LAST_SCENARIO);
  chooseScenario(scenarioNamed(last) ? last : lab.catalogue.scenarios[0].name);
  if (lab.catalogue.state) await followJob(lab.catalogue.state);
  if (!lab.document) await restore();
  loaded = true;
  takeFork();
}

on("replaced", async () => {
  if (loaded && await loadCatalogue()) adoptCatalogue();
});

const cards = () => [...group.children];

function fill() {
  count.textContent = `${lab.catalogue.scenarios.length}, all seeded`;
  group.replaceChildren(...lab.catalogue.scenarios.map(cardOf), ownCard());
}

function cardOf(scenario) {
  const { name, look = [] } = scenario, onclick = () => chooseScenario(name);
  const values = { className: "rp-lab-card", "data-name": name, title: look.join(" "), role: "radio", onclick };
  return makeButton(make("b", "", scenario.title), values, make("span", "", scenario.card), drawing(name));
}

function mark() {
  let some = false;
  for (const card of cards()) {
    const chosen = Boolean(lab.scenario) && card.dataset.name === lab.scenario.name;
    card.setAttribute("aria-checked", String(chosen));
    card.tabIndex = chosen || card.dataset.name === lab.catalogue.own.name ? 0 : -1;
    some = some || chosen;
    if (chosen) card.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  if (!some && cards().length) cards()[0].tabIndex = 0;
}

function boxes() {
  for (const name of ["num_requests", "rate_per_s", "max_new_tokens"]) {
    const box = document.getElementById(`lab-${name}`);
    if (box) box.style.display = name in lab.numbers ? "" : "none";
  }
  showNumbers();
}

/* Enable the buttons of the tab that can be pressed now. */
function enableButtons() {
  const busy = measuring(), result = Boolean(shownResult());
  const can = { run: !busy && lab.plan, stop: busy, report: result, export: result, link: result };
  for (const [name, may] of Object.entries(can)) {
    const button = document.getElementById(`lab-${name}`);
    if (button && !locked(button)) button.disabled = !may;
  }
}
for (const event of ["lab", "lock"]) on(event, enableButtons);

// ---- a file of requests, in place of a scenario's -----------------------------------------------------------

const LARGEST = 8 * 2 ** 20; // the server's limit
let chosenFile = null; // the text on the card that names the file

/* The last card: the file is chosen with it, or dropped on it. */
function ownCard() {
  const input = make("input", { type: "file", hidden: true, accept: ".jsonl,.json,.csv,.txt" });
  const label = "Your own traffic: choose a file", title = make("b", "", "Your own traffic…");
  const look = { className: "rp-lab-card", role: "radio", "aria-label": label, "data-name": lab.catalogue.own.name };
  chosenFile = make("span");
  const card = makeButton(title, look, chosenFile, drawing("other"), input);
  takeFiles(card, input, card, take);
  input.onclick = (event) => event.stopPropagation();
  showFile();
  return card;
}

async function take(file) {
  if (file.size > LARGEST) return say(`${file.name} is larger than 8 MiB: use a part of it.`);
  lab.traffic = { name: file.name.slice(0, 80), text: await file.text() };
  chooseScenario(lab.catalogue.own.name, { fresh: true });
  tell("traffic");
}

/* The traffic of a recorded run: for B with its settings, for A with those before their last change. */
function takeFork() {
  const { fork } = lab;
  if (!fork || !loaded) return;
  setMode("compare");
  Object.assign(lab, { fork: null, traffic: { name: fork.name.slice(-80), text: fork.text } });
  chooseScenario(lab.catalogue.own.name, { fresh: true });
  for (const arm of ARMS) {
    const { knobs } = lab.plan[arm];
    for (const name of Object.keys(knobs)) if (name in fork.knobs) knobs[name] = fork.knobs[name]; // null is a value
  }
  const changes = Object.entries(fork.changes ?? {}).filter(([name]) => name in lab.plan.A.knobs);
  for (const [name, [before]] of changes) lab.plan.A.knobs[name] = before;
  tell("plan");
  tell("traffic");
  const labels = changes.map(([name]) => given.settings.knobs[name]?.label ?? name).join(", ");
  if (labels) return say(`B has the recording's ${labels}, A what it was before.`);
  say("A and B are the same: change a setting of B.");
  document.querySelector("#rp-lab-settings [data-key^='B ']")?.focus();
}

function showFile() {
  if (!chosenFile) return;
  const { traffic } = lab;
  const size = traffic && traffic.requests ? `${format.many(traffic.requests.length, "request")}, ` : "";
  write(chosenFile, traffic ? `${size}${traffic.name || "from a file"}` : "A file: JSONL, CSV or ShareGPT.");
}
