/* The engines behind another server's address side by side, if there are several: what each runs, how full its KV cache
 * is, and how much of its prompts it found cached. */
import { make, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { store } from "../shared/store.js";
import { rowHead, tableHead } from "../shared/table.js";
import { view } from "./view.js";

/** @import { LoadFigures } from "../shared/records.js" */

const NONE = "–";
const COLUMNS = [
  ["replica"],
  ["run", "Requests that it computes."],
  ["wait", "Requests that wait for a place in it."],
  ["KV in use", "The share of its KV cache that requests hold."],
  ["hit rate", "The share of its prompt tokens that it found cached, over the time shown."],
];

let body = null, subtitle = null;

const percent = (share) => (share === null || share === undefined ? NONE : format.percent(100 * share, 0));

/** The report at the beginning of the time that the charts show. @param {import("../shared/types.js").Load} last */
export const loadBefore = (last) => store.loads.findLast(({ t }) => t < last.t - view.span) || store.loads[0];

/** The share of prompt tokens found between two reports; null where there were none. */
export function hitRate(/** @type {LoadFigures} */ before, /** @type {LoadFigures} */ now) {
  if (now.prefix_queries === null || now.prefix_hits === null) return null;
  const queries = now.prefix_queries - (before?.prefix_queries ?? 0),
    hits = now.prefix_hits - (before?.prefix_hits ?? 0);
  return queries > 0 ? hits / queries : null;
}

function row(name, /** @type {LoadFigures} */ before, /** @type {LoadFigures} */ now) {
  const count = (n) => (n === null ? NONE : format.count(n)), used = now.kv_usage ?? 0;
  const bar = make("i", { style: `width: ${100 * Math.min(1, used)}%` });
  const cells = [count(now.running), count(now.waiting)].map((text) => make("td", "", text));
  const track = make("u", { "aria-hidden": true }, bar);
  const kv = make("td", "rp-share-of", track, make("span", "", percent(now.kv_usage)));
  return make("tr", "", rowHead("", name), ...cells, kv, make("td", "", percent(hitRate(before, now))));
}

function show() {
  const last = store.loads[store.loads.length - 1], replicas = Object.entries(last?.replicas ?? {});
  document.body.classList.toggle("rp-replicated", replicas.length > 1);
  if (!body || replicas.length < 2) return;
  const from = loadBefore(last);
  write(subtitle, `${replicas.length} behind one address`);
  body.replaceChildren(...replicas.map(([name, now]) => row(name, from.replicas?.[name], now)));
}

on("reset", show);
on("frame", ({ frames }) => {
  if ((frames || []).some((frame) => frame.loads && frame.loads.length)) show();
});

/** @param {HTMLElement} element a panel */
export function mount(element) {
  subtitle = element.querySelector(".rp-sub");
  body = make("tbody");
  element.querySelector(".rp-plot").append(make("table", "rp-replicas", tableHead(...COLUMNS), body));
  show();
}
