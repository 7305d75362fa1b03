/* The table of medians, with B over A. */
import { make, svg, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { lab, meaning } from "./state.js";
import { figureText, tableHead } from "./words.js";

const CLIP = 3, HALF_PX = 34; // ratio bars end at 8x
const SAME = Math.log2(1.15); // closer than this is no difference
const METRICS = [ // what stands there before there is a result
  ["output_tokens_per_s", "Throughput", "tok/s"],
  ["goodput_req_s", "Goodput", "req/s in SLO"],
  ["ttft_p50_ms", "TTFT p50", "ms"],
  ["ttft_p95_ms", "TTFT p95", "ms"],
  ["tpot_p50_ms", "TPOT p50", "ms"],
  ["itl_p50_ms", "ITL p50", "ms"],
  ["itl_p95_ms", "ITL p95", "ms"],
  ["itl_p99_ms", "ITL p99", "ms"],
  ["itl_max_ms", "ITL worst", "ms"],
].map(([name, title, unit]) => ({ name, title, unit, better: "lower", a: null, b: null, ratio: null }));

/* A ratio's logarithm, from -3 to 3; 0 of none. */
const clipped = (ratio) => (ratio === null ? 0 : Math.max(-CLIP, Math.min(CLIP, Math.log2(Math.max(0, ratio)))));

function ratioText(ratio) {
  if (ratio === null) return "–";
  return `${ratio === 0 ? "0" : ratio.toFixed(ratio < 0.1 ? 3 : ratio < 10 ? 2 : 1)}×`;
}

/* What a ratio says of B: no clear difference, better or worse. */
function verdict(ratio, better) {
  const log = clipped(ratio);
  return Math.abs(log) < SAME ? "same" : log > 0 === (better === "higher") ? "good" : "worse";
}

/* A bar from the middle, as long as the ratio's logarithm; filled where B is better, hollow where it is worse. */
function bar(ratio, better) {
  const log = clipped(ratio), wide = (Math.abs(log) / CLIP) * HALF_PX, x = log > 0 ? 36.5 : 36.5 - wide;
  const says = verdict(ratio, better), color = { same: "line2", good: "ink", worse: "ink3" }[says];
  const solid = { x: x.toFixed(1), y: 3, width: wide.toFixed(1), height: 6, fill: `var(--rp-${color})` };
  const outline = { fill: "none", stroke: `var(--rp-${color})` };
  const hollow = { ...solid, ...outline, y: 3.5, width: Math.max(1.5, wide).toFixed(1), height: 5 };
  /** @type {import("../shared/dom.js").Shape[]} */
  const shapes = [["path", { d: "M36.5 0v12", stroke: "var(--rp-line2)" }]];
  if (wide >= 0.8) shapes.push(["rect", says === "worse" ? hollow : solid]);
  return svg(72, 12, ...shapes);
}

let body = null, subtitle = null;

export function mount(element) {
  const plot = element.querySelector(".rp-plot");
  subtitle = element.querySelector(".rp-sub");
  body = make("tbody");
  plot.classList.add("rp-lab-scroll");
  plot.append(make("table", "rp-lab-table rp-lab-res", tableHead("metric", "B / A", "solid = better"), body));
  on("lab", (what) => (what === "document" || what === "summary") && show());
  show();
}

function row(metric) {
  const { name, title, unit, better, a, b, ratio } = metric;
  const says = verdict(ratio, better), watched = lab.scenario && lab.scenario.watch === name ? "rp-watched" : "";
  const words = { same: "no clear difference", good: "B is better", worse: "B is worse" }[says];
  const drawing = make("td", "", bar(ratio, better), make("span", "rp-lab-hear", ratio === null ? "" : words));
  const figures = [figure("A", a, metric.a_range, unit), figure("B", b, metric.b_range, unit)];
  const look = { className: `rp-${says} ${watched}`, "data-metric": name };
  return make(
    "tr",
    look,
    head(name, title, " ", make("small", "", unit)),
    ...figures,
    make("td", "", ratioText(ratio)),
    drawing,
  );
}

const head = (name, ...inside) => make("th", { scope: "row", title: meaning(name) }, ...inside);

function figure(arm, value, range, unit) {
  const td = make("td", arm.toLowerCase(), figureText(value));
  if (range) td.title = `${arm}: ${figureText(range[0])} to ${figureText(range[1])} ${unit} over the repeats`;
  return td;
}

function same(yes) {
  const cells = [head("same_tokens", "Same tokens"), make("td", { colSpan: 4 }, yes ? "yes" : "no")];
  return make("tr", { className: "rp-same", "data-metric": "same_tokens" }, ...cells);
}

function show() {
  const summary = lab.document && lab.document.summary, repeats = lab.document && lab.document.repeats;
  write(subtitle, !summary ? "" : repeats > 1 ? `medians of ${repeats} repeats` : "one repeat");
  const about = summary ? { model: lab.document.model, dtype: lab.document.dtype, ...lab.document.environment } : {};
  const known = Object.entries(about).filter(([, value]) => value !== null);
  subtitle.title = known.map(([name, value]) => `${name}: ${value}`).join("\n");
  body.replaceChildren(...(summary ? [same(summary.same_tokens), ...summary.metrics.map(row)] : METRICS.map(row)));
}
