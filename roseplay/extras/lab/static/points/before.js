/* The newest sweeps or searches that this browser keeps. */
import { make, makeButton, write } from "page/shared/dom.js";
import { getKept, listKept } from "../database.js";
import { showResult } from "../document.js";
import { lab, measuring, shownResult, showOn } from "../state.js";

const MOST = 4;
let list = null, subtitle = null;

export function mount(element) {
  const plot = element.querySelector(".rp-plot");
  subtitle = element.querySelector(".rp-sub");
  list = make("ul", "rp-lab-before");
  plot.append(list);
  showOn(show, "mode", "points", "summary", "job");
}

async function show() {
  if (lab.mode === "compare" || measuring()) return; // a run changes nothing until it is kept
  const { mode } = lab, all = await listKept().catch(() => []);
  if (mode !== lab.mode) return;
  const entries = all.filter(({ kind }) => kind === mode).slice(0, MOST);
  write(subtitle, entries.length ? "kept in this browser" : "none yet");
  list.replaceChildren(...entries.map(line));
}

/** @param {import("../database.js").Entry} entry */
function line({ id, name, title, about, short, created }) {
  const shown = shownResult(), now = Boolean(shown && shown.id === id);
  const button = makeButton(name || `${title}: ${short}`, { title: about, "aria-pressed": String(now) });
  button.onclick = async () => showResult(await getKept(id));
  return make("li", "", button, make("time", { dateTime: created }, ago(created)));
}

function ago(created) {
  const minutes = Math.round((Date.now() - new Date(created).getTime()) / 60000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${minutes} min ago`;
  return new Date(created).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
}
