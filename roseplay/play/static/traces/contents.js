/* The contents of the run: its bursts with their figures, and the changes of settings between them, newest first. */
import { make } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { quantile } from "../shared/numbers.js";
import { slowedFirst } from "../shared/past.js";
import { store } from "../shared/store.js";
import { tableHead } from "../shared/table.js";
import { knobMarks } from "../live/knobmarks.js";

const EVERY_MS = 1000, MOST = 200;
const HEAD = [["at"], ["what"], ["answered"], ["TTFT p50"], ["p95"]];

let box = null, rows = null, note = null, key = "";

/** @param {HTMLElement} element of the section */
export function mountContents(element) {
  box = element;
  rows = make("tbody");
  note = make("p", "rp-contents-none", "Nothing yet: bursts and changed settings are listed here.");
  box.append(make("table", "rp-contents", tableHead(...HEAD), rows), note);
  on("reset", () => (key = ""));
  setInterval(show, EVERY_MS);
}

/* [{t, cells}] of everything that is still known. */
function entries() {
  const changes = knobMarks().map(({ t, text }) => ({ t, knob: true, cells: [text, "", "", ""] }));
  const bursts = [...store.bursts.values()].filter(({ requests }) => requests.length).map(({ id, requests }) => {
    const ttft = requests.map((request) => request.ttft_ms).filter((ms) => ms !== null).sort((a, b) => a - b);
    const figures = ttft.length ? [0.5, 0.95].map((q) => `${format.ms(quantile(ttft, q))} ms`) : ["–", "–"];
    const t = Math.min(...requests.map(({ submitted }) => submitted ?? Infinity));
    const of = `burst ${id}, ${format.many(requests.length, "request")}${slowedFirst(requests)}`;
    return { t, knob: false, cells: [of, `${ttft.length} of ${requests.length}`, ...figures] };
  });
  return [...changes, ...bursts].sort((a, b) => b.t - a.t).slice(0, MOST);
}

function show() {
  if (!box.offsetParent) return;
  const all = entries(), now = JSON.stringify(all);
  if (now === key) return;
  key = now;
  note.hidden = all.length > 0;
  rows.replaceChildren(...all.map(({ t, knob, cells }) => {
    const at = Number.isFinite(t) ? `${(t / 1000).toFixed(1)} s` : "earlier";
    return make("tr", knob ? "rp-hand" : "", ...[at, ...cells].map((text) => make("td", "", text)));
  }));
}
