/* The header's figures, in cells of fixed width. The server computes them, at most four times a second, except for
 * latencies: these are for the time that the charts show, from the same data. */
import { connection } from "../shared/connection.js";
import { make, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { slowedIn } from "../shared/past.js";
import { createPen } from "../shared/pen.js";
import { store } from "../shared/store.js";
import { palette } from "../shared/theme.js";
import { time } from "../shared/time.js";
import { begunIn, percentiles } from "./gaps.js";
import { hitRate, loadBefore } from "./replicas.js";
import { SPANS, view } from "./view.js";

const SPARK = 60; // figures in the small curve: about 15 s of them
const LATENCIES_MS = 250, RATE_MS = 2000; // between two looks; the time of which the server gives the rate
const rates = [];
let cells = null, shown = null;

function writeCell(name, parts, unit) {
  const cell = cells[name], of = parts[0] === "–" ? "" : unit, shape = `${parts.length}${of}`;
  if (cell.shape !== shape) {
    cell.shape = shape;
    cell.numbers = parts.map(() => document.createTextNode(""));
    const spaced = cell.numbers.flatMap((number, i) => (i ? [make("em", "", "/"), number] : [number]));
    cell.box.replaceChildren(...spaced, ...(of ? [make("small", "", of)] : []));
  }
  cell.numbers.forEach((number, i) => number.data !== parts[i] && (number.data = parts[i]));
  if (!parts.some((part) => part !== "–" && part !== "0")) return;
  for (const { classList } of [cell.root, document.body]) classList.add("rp-had"); // something to say
}

function show() {
  const { count } = format, s = shown = store.stats ?? {};
  writeCell("tps", [count(s.tok_s)], "");
  writeCell("rw", [count(s.running), count(s.waiting)], "");
  const held = s.kv_total ? (s.kv_active + s.kv_shared) / s.kv_total : s.kv_used ?? null;
  const used = held === null ? null : 100 * held;
  writeCell("kv", [used === null ? "–" : used > 0 && used < 1 ? "<1" : String(Math.round(used))], "%");
  cells.kv.bar.style.width = `${used || 0}%`;
  writeCell("saved", ...savedFigure(s));
  const foot = document.getElementById("rp-step");
  if (foot && s.step != null) write(foot, `step ${count(s.step)}`);
  rates.push(s.tok_s || 0);
  if (rates.length > SPARK) rates.shift();
  spark();
}

/* For another server that counts hits in its prefix cache: the share of prompt tokens found, in the time shown. */
function savedFigure(s) {
  const { info, absent, loads } = store, last = loads[loads.length - 1];
  if (!info?.server) return [[format.count(s.saved_tokens)], "tok"];
  const rate = absent.prefix_hit_rate || !last ? null : hitRate(loadBefore(last), last);
  return rate === null ? [["–"], ""] : [[format.count(100 * rate)], "%"];
}

/* The last cell has another name if the figure is from another server. */
function nameCells() {
  const name = store.info?.server ? "prefix hit rate" : "saved by sharing", button = cells?.saved.name;
  if (!button || button.dataset.term === name) return;
  write(button, name);
  button.dataset.term = name;
}
on("reset", nameCells);

/* They go on changing for a moment after the last frame. */
let latenciesOf = "";
function latencies() {
  const now = time.now(), key = `${store.version} ${Math.round(now)} ${view.serial}`;
  if (!cells || document.hidden || key === latenciesOf) return;
  latenciesOf = key;
  for (const name of /** @type {("itl" | "ttft")[]} */ (["itl", "ttft"])) {
    const longer = name === "ttft" ? SPANS.filter((ms) => ms > view.span) : []; // until an answer began in it
    const span = [view.span, ...longer].find((ms) => begunIn(view.latest(now, ms)).length) ?? view.span;
    const window = view.latest(now, span), { parts, unit } = percentiles(name, window);
    writeCell(name, parts, unit);
    write(cells[name].slow, slowedIn(window));
  }
  write(cells.tps.slow, shown?.tok_s ? slowedIn({ x0: now - RATE_MS, x1: now }) : "");
}
setInterval(latencies, LATENCIES_MS);

function spark() {
  const pen = createPen(cells.tps.spark), width = 52, height = 24, top = Math.max(...rates, 1);
  const x = (i) => ((i + SPARK - rates.length) / (SPARK - 1)) * (width - 2) + 1;
  pen.begin(width, height);
  pen.path(rates.map((rate, i) => [x(i), height - 2 - (rate / top) * (height - 4)]), palette().ink3, 1);
}

/* Rates describe the present: without a connection there are none. The other figures stay as last known. */
const isStopped = () => Boolean(connection.trouble && connection.trouble.stopped);

on("connection", () => {
  if (!cells) return;
  if (!isStopped()) return show();
  writeCell("tps", ["–"], "");
  writeCell("rw", ["–", "–"], "");
});

on("reset", () => {
  rates.length = 0;
  if (cells) show();
});

on("frame", () => cells && store.stats && store.stats !== shown && !isStopped() && show());

/** @param {HTMLElement} element the header's strip */
export function mount(element) {
  cells = {};
  for (const kpi of element.querySelectorAll(".rp-kpi")) {
    const parts = ["b", "span button", "span i", "canvas", "u i"];
    const [box, name, slow, spark, bar] = parts.map((selector) => kpi.querySelector(selector));
    cells[kpi.classList[1]] = { root: kpi, box, name, slow, spark, bar, shape: "" };
  }
  nameCells();
  if (store.bootId) show();
  on("theme", spark);
}
