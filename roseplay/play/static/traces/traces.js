/* The Traces tab: the contents of the current run, newest first, and its downloads; a recording opened from a file,
 * which only this browser reads; and the demo that comes with the server. */
import { ask } from "../shared/ask.js";
import { make, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { poll, ready } from "../shared/poll.js";
import { keep, ofTab, stored } from "../shared/storage.js";
import { tab } from "../shared/tab.js";
import { takeFiles } from "../shared/takefiles.js";
import { replay } from "../replay/replay.js";
import { quantile } from "../shared/numbers.js";
import { slowedFirst } from "../shared/past.js";
import { store } from "../shared/store.js";
import { tableHead } from "../shared/table.js";
import { knobMarks } from "../live/knobmarks.js";

const AGAIN_MS = 2000, CONTENTS_MS = 1000, MOST = 200, KEPT = "roseplay-happened";
const FIGURES = ["seconds", "steps", "requests", "tokens", "bytes"];

const length = (s) => (s < 60 ? `${s.toFixed(1)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`);
const HEAD = [["at"], ["what"], ["answered"], ["TTFT p50"], ["p95"]];
const WORDS = { seconds: length, bytes: format.bytes };

let box = null, status = null, rows = null, note = null, shown = "";

const part = (selector) => box.querySelector(selector);
const links = () => box.querySelectorAll("a[data-file]");

export function mount(element) {
  box = element.querySelector(".rp-traces");
  status = part(".rp-open-said");
  for (const link of links()) link.href = `/ui/export/${link.dataset.file}?tab=${encodeURIComponent(tab)}`;
  box.addEventListener("click", (event) => {
    if (event.target.closest && event.target.closest("a[aria-disabled]")) event.preventDefault();
  });
  on("connection", (trouble) => (trouble && trouble.kind === "server" ? offer(false) : look()));
  setInterval(look, AGAIN_MS);
  new ResizeObserver(look).observe(box); // from nothing to something when the tab is shown
  const demo = part(".rp-demo");
  if (demo) demo.onclick = async () => onLoad(await replay.demo());
  rows = make("tbody");
  note = make("p", "rp-contents-none", "Nothing yet: bursts and changed settings are listed here.");
  part(".rp-contents-of").append(make("table", "rp-contents", tableHead(...HEAD), rows), note);
  on("reset", () => (shown = ""));
  setInterval(showContents, CONTENTS_MS);
  takeFiles(part(".rp-choose"), part("input[type=file]"), part(".rp-drop-zone"), take);
}

// ---- this run -------------------------------------------------------------------------------------------
async function look() {
  if (!box.offsetParent || !ready()) return;
  const run = await ask("/export", { ms: AGAIN_MS * 2 }).catch(() => null); // the header shows a server that is gone
  if (run) show(run);
}

function show(run) {
  const any = run.steps + run.requests > 0;
  for (const name of FIGURES) {
    const cell = part(`td[data-of=${name}]`), value = (WORDS[name] || format.count)(run[name]);
    write(cell, any ? value : "–");
  }
  box.classList.toggle("rp-no-run", !any);
  offer(any);
  write(part(".rp-to-file"), run.file ? `Also written to ${run.file}, with the texts of all requests.` : "");
}

/* Enable or disable the downloads. */
function offer(any) {
  for (const link of links()) link.ariaDisabled = any ? null : "true";
}

// ---- opening --------------------------------------------------------------------------------------------
function onLoad(problem) {
  write(status, problem);
  status.classList.toggle("rp-bad", Boolean(problem));
  if (problem) return;
  document.getElementById("rp-live-button").click();
  document.querySelector("#rp-replay .rp-toggle").focus(); // Space plays and pauses
}

async function take(chosen) {
  write(status, `Reading ${chosen.name} …`);
  status.classList.remove("rp-bad");
  onLoad(await replay.load(chosen.text(), chosen.name));
}

// ---- the contents of the run ----------------------------------------------------------------------------
/** What is listed: `id` is what it is about, and `known` how many requests of it.
 * @typedef {{id: string, t: number, known: number, cells: string[]}} Entry */

/* What the store knows: bursts with their figures, and changed settings between them. @returns {Entry[]} */
function latest() {
  const changes = knobMarks().map(({ t, text }) => ({ id: `change ${t}`, t, known: 0, cells: [text, "", "", ""] }));
  const bursts = [...store.bursts.values()].filter(({ requests }) => requests.length).map(({ id, requests }) => {
    const ttft = requests.map((request) => request.ttft_ms).filter((ms) => ms !== null).sort((a, b) => a - b);
    const figures = ttft.length ? [0.5, 0.95].map((q) => `${format.ms(quantile(ttft, q))} ms`) : ["–", "–"];
    const t = Math.min(...requests.map(({ submitted }) => submitted ?? Infinity)), known = requests.length;
    const what = `burst ${id}, ${format.many(known, "request")}${slowedFirst(requests)}`;
    return { id: `burst ${id}`, t, known, cells: [what, `${ttft.length} of ${known}`, ...figures] };
  });
  return [...changes, ...bursts];
}

/* What was listed when this tab left the page of the same server, to be reloaded. @returns {Entry[]} */
function earlier() {
  const { boot, list } = JSON.parse(stored(KEPT, ofTab) ?? "{}");
  return boot === store.bootId ? list : [];
}

/* All of it, newest first. */
function happened() {
  const all = new Map(earlier().map((one) => [one.id, one]));
  for (const one of latest()) if (!(all.get(one.id)?.known > one.known)) all.set(one.id, one);
  return [...all.values()].sort((a, b) => b.t - a.t).slice(0, MOST);
}
addEventListener("pagehide", () => {
  if (!poll.held) keep(KEPT, JSON.stringify({ boot: store.bootId, list: happened() }), ofTab);
});

function showContents() {
  if (!box.offsetParent) return;
  const all = happened(), now = JSON.stringify(all);
  if (now === shown) return;
  shown = now;
  note.hidden = all.length > 0;
  rows.replaceChildren(...all.map(({ t, known, cells }) => {
    const at = Number.isFinite(t) ? `${(t / 1000).toFixed(1)} s` : "earlier";
    return make("tr", known ? "" : "rp-hand", ...[at, ...cells].map((text) => make("td", "", text)));
  }));
}
