/* The mark of a simulated engine beside the header's figures: its hardware and the label of its times. It opens a
 * dialog that says where every number comes from, which the server fills. */
import { ask } from "../shared/ask.js";
import { make, makeButton, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { factList, factRow } from "../shared/popover.js";
import { store } from "../shared/store.js";
import { tableHead } from "../shared/table.js";

/** The answer to GET /ui/simulation; `examples` are steps, for whose ms there is a column each.
 * @typedef {{label: string, said: string, formula: string, examples: string[],
 *   terms: {name: string, words: string, value: string, origin: string, ms: number[]}[],
 *   points: {engine: string, measures: string, load: string, measured_ms: number, predicted_ms: number | null,
 *     off_percent: number | null, ttft_s: number | null, source: string}[],
 *   gpu: {rows: string[][], source: string}, memory: string[][],
 *   labels: {label: string, means: string, now: boolean}[], not_modelled: string[]}} Origins */

const REAL =
  " Scheduler, prefix cache, KV blocks and traffic are real; a cost model estimates how long each step takes. ";
const SATURATED = "saturated", GROWING = `${SATURATED}, the queue keeps growing`;

/** @type {HTMLElement | null} */
let mark = null;
/** @type {HTMLDialogElement | null} */
let dialog = null;

/** The label of what the header shows now; "" where a model is computed. */
export function label() {
  const { info, stats } = store;
  if (!info?.simulated) return "";
  return stats?.saturated ? GROWING : info.evidence ?? "";
}

function show() {
  const { info, stats } = store, simulated = Boolean(info?.simulated);
  document.body.toggleAttribute("data-simulated", simulated);
  if (!mark) return;
  mark.hidden = !simulated;
  if (!simulated) return;
  const [where, words] = [...mark.children];
  write(where, info.device);
  write(words, stats?.saturated ? SATURATED : info.evidence_kind ?? label());
  mark.title = `${info.simulated}. Now: ${label()}. Where every number comes from`;
}
on("reset", show);
on("frame", show);

// ---- the dialog -------------------------------------------------------------------------------------------
const heading = (text) => make("h3", "", text);

const pairs = (rows) => factList(...rows.map((row) => factRow(...row)));

/** A table that can be scrolled where it is too wide. */
function table(caption, head, rows) {
  const cell = (text, i) => make("td", i && /^[−–\d.,\s%+]/.test(text) ? "num" : "", text);
  const body = make("tbody", "", ...rows.map((row) => make("tr", "", ...row.map(cell))));
  const values = { className: "rp-scroll", tabIndex: 0, role: "region", "aria-label": caption };
  return make("div", values, make("table", "", tableHead(...head.map((text) => [text])), body));
}

const ms = format.figure;
const off = (percent) => percent === null ? "–" : `${percent < 0 ? "−" : "+"}${format.percent(Math.abs(percent), 1)}`;

/** @param {Origins} origins */
function terms({ terms, examples }) {
  const sums = examples.map((_, i) => terms.reduce((sum, term) => sum + term.ms[i], 0));
  const rows = terms.map(({ name, words, value, origin, ms: times }) => [name, words, value, origin, ...times.map(ms)]);
  const head = ["time for", "estimated from", "parameter", "", ...examples.map((step) => `ms in ${step}`)];
  return table("Terms of a step's time", head, [...rows, ["sum", "", "", "", ...sums.map(ms)]]);
}

/** @param {Origins} origins @param {string[]} sources */
function points({ points }, sources) {
  if (!points.length) return [make("p", "", "Nothing is known that was measured with this model on this hardware.")];
  const rows = points.map((one) => [
    one.measures,
    one.load,
    ms(one.measured_ms),
    ms(one.predicted_ms),
    off(one.off_percent),
    one.ttft_s === null ? "–" : `${ms(1000 * one.ttft_s)}`,
    `${one.engine} [${1 + sources.indexOf(one.source)}]`,
  ]);
  const head = ["figure", "requests × prompt + answer", "measured ms", "cost model ms", "off", "its TTFT ms", "by"];
  const notes =
    "The cost model's figures are for the same load; for a point of your calibration, it was fitted to the " +
    "others. Where there is none, the scheduler decides: the demo KV cliff plays such a load.";
  return [table("Measured points", head, rows), make("p", "", notes)];
}

/** @param {Origins} origins */
function contents(origins) {
  const { said, formula, gpu, memory, labels, not_modelled } = origins, { info } = store;
  const sources = [...new Set(origins.points.map((point) => point.source).concat(gpu.source))];
  return [
    make("p", "", make("b", "", `${info?.model} is not computed here.`), REAL, said),
    heading("How long a step takes"),
    make("p", "", formula),
    terms(origins),
    heading("Measured with this model on this hardware"),
    ...points(origins, sources),
    heading("Hardware"),
    pairs([...gpu.rows, ["source", `[${1 + sources.indexOf(gpu.source)}]`]]),
    heading("Memory"),
    pairs(memory),
    heading("Labels"),
    pairs(labels.map(({ label: name, means, now }) => [name, ...(now ? [make("b", "", "Now. "), means] : [means])])),
    heading("Not modelled"),
    make("ul", "", ...not_modelled.map((line) => make("li", "", line))),
    heading("Sources"),
    make("ol", "", ...sources.map((source) => make("li", "", source))),
  ];
}

async function fill(body) {
  const status = make("p", { role: "status" }, "Loading…");
  body.replaceChildren(status);
  const origins = await ask("/simulation").catch(() => null);
  if (origins) body.replaceChildren(...contents(origins));
  else write(status, `${store.info?.simulated ?? ""}. More is known only while the engine runs.`);
}

function open() {
  if (!dialog) {
    const values = { id: "rp-simulation-title", tabIndex: -1, autofocus: true };
    const title = make("h2", values, "Where every number comes from");
    const form = make("form", { method: "dialog" }, title, make("div"), makeButton("Close"));
    form.querySelector("button").type = "submit";
    dialog = make("dialog", { id: "rp-simulation", "aria-labelledby": title.id }, form);
    mark.parentElement.append(dialog);
  }
  dialog.showModal();
  fill(dialog.querySelector("form > div"));
}

/** @param {HTMLElement} element the button */
export function mountMark(element) {
  mark = element;
  mark.append(make("span"), make("span"));
  mark.onclick = open;
  show();
}
