/* The header's strip of figures. The server makes them, at most four times a second, but for inter-token latency,
 * which is taken where the chart takes it; they are written into cells of fixed width. */
import { connection } from "../shared/connection.js";
import { make, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { quantile } from "../shared/numbers.js";
import { store } from "../shared/store.js";
import { palette } from "../shared/theme.js";
import { time } from "../shared/time.js";
import { gapsIn } from "./gaps.js";
import { view } from "./view.js";

const SPARK = 60; // figures in the small curve: about 15 s of them
const ITL_MS = 250;
const rates = [];
let cells = null, latest = null;

function writeCell(name, parts, unit) {
  const cell = cells[name];
  const key = parts.join("/") + unit;
  if (cell.key === key) return;
  cell.key = key;
  cell.box.replaceChildren();
  parts.forEach((part, i) => {
    if (i) cell.box.append(make("em", "", "/"));
    cell.box.append(part);
  });
  if (unit && parts[0] !== "–") cell.box.append(make("small", "", unit));
}

function show(s) {
  const { count, ms } = format;
  writeCell("tps", [count(s.tok_s)], "");
  writeCell("rw", [count(s.running), count(s.waiting)], "");
  writeCell("ttft", [ms(s.ttft_p50), ms(s.ttft_p95)], "ms");
  const used = s.kv_total ? (100 * (s.kv_active + s.kv_shared)) / s.kv_total : null;
  writeCell("kv", [used === null ? "–" : used > 0 && used < 1 ? "<1" : String(Math.round(used))], "%");
  cells.kv.bar.style.width = `${used || 0}%`;
  writeCell("saved", [count(s.saved_tokens)], "tok");
  const foot = document.getElementById("rp-step");
  if (foot && s.step !== null) write(foot, `step ${count(s.step)}`);
  rates.push(s.tok_s || 0);
  if (rates.length > SPARK) rates.shift();
  spark();
}

/* As the chart has them: of all gaps in the last seconds of work. They go on changing for a moment after the last
 * frame. */
let itlOf = "";
function itl() {
  const now = time.now(), key = `${store.version} ${Math.round(now)}`;
  if (!cells || document.hidden || key === itlOf) return;
  itlOf = key;
  const { sorted } = gapsIn(view.latest(now));
  writeCell("itl", sorted.length ? [0.5, 0.99].map((q) => format.ms(quantile(sorted, q))) : ["–", "–"], "ms");
}
setInterval(itl, ITL_MS);

function spark() {
  const canvas = cells.tps.spark, ratio = devicePixelRatio || 1, width = 52, height = 24;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d"), top = Math.max(...rates, 1);
  if (rates.length < 2) return;
  pen.scale(ratio, ratio);
  pen.strokeStyle = palette().ink3;
  pen.beginPath();
  const x = (i) => ((i + SPARK - rates.length) / (SPARK - 1)) * (width - 2) + 1;
  rates.forEach((rate, i) => pen.lineTo(x(i), height - 2 - (rate / top) * (height - 4)));
  pen.stroke();
}

/* Rates are of now: where nothing is heard any more there are none. The other figures stay, as what was last known. */
const stopped = () => Boolean(connection.trouble && connection.trouble.stopped);

on("connection", () => {
  if (!cells) return;
  if (!stopped()) return show(latest || NONE);
  writeCell("tps", ["–"], "");
  writeCell("rw", ["–", "–"], "");
});

const NONE = {
  tok_s: null,
  running: null,
  waiting: null,
  ttft_p50: null,
  ttft_p95: null,
  kv_total: 0,
  saved_tokens: null,
  step: null,
};

on("reset", () => {
  rates.length = 0;
  latest = NONE;
  if (cells) show(NONE);
});

on("frame", ({ snapshot, frames }) => {
  const before = latest;
  for (const { stats } of [snapshot || {}, ...(frames || [])]) latest = stats || latest;
  if (cells && latest && latest !== before && !stopped()) show(latest);
});

/** @param {HTMLElement} element the header's strip */
export function mount(element) {
  cells = {};
  for (const kpi of element.querySelectorAll(".rp-kpi")) {
    const name = kpi.classList[1];
    cells[name] = {
      box: kpi.querySelector("b"),
      spark: kpi.querySelector("canvas"),
      bar: kpi.querySelector("u i"),
      key: "",
    };
  }
  if (latest) show(latest);
  on("theme", spark);
}
