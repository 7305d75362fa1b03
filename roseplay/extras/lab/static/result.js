/* The table of medians and ranges, with the ratio of B to A. Whether B is better or worse is the server's verdict,
 * which its sentences also use. */
import { make, svg, write } from "page/shared/dom.js";
import { format } from "page/shared/format.js";
import { abHead, rowHead } from "page/shared/table.js";
import { ARMS, fillPanel, lab, meaning, showOn } from "./state.js";

const CLIP = 3, WIDE = 48, HALF_PX = 22, LEAST_PX = 1.5; // ratio bars end at 8x
const VERDICTS = { better: "B is better", worse: "B is worse", within: "no clear difference", unknown: "" };

/* A ratio's logarithm, clipped to -3 … 3; 0 if there is no ratio. */
const clipped = (ratio) => (ratio === null ? 0 : Math.max(-CLIP, Math.min(CLIP, Math.log2(Math.max(0, ratio)))));

/* A bar from the middle, as long as the ratio's logarithm; filled where B is better, hollow where it is worse. */
function bar(ratio, verdict) {
  const clear = verdict === "better" || verdict === "worse", log = clipped(ratio), middle = WIDE / 2 + 0.5;
  const wide = Math.max(clear && log ? LEAST_PX : 0, (Math.abs(log) / CLIP) * HALF_PX);
  const x = log > 0 ? middle : middle - wide;
  const color = { better: "ink", worse: "ink3" }[verdict] || "line2";
  const solid = { x: x.toFixed(1), y: 3, width: wide.toFixed(1), height: 6, fill: `var(--rp-${color})` };
  const outline = { fill: "none", stroke: `var(--rp-${color})` };
  const hollow = { ...solid, ...outline, y: 3.5, height: 5 };
  /** @type {import("page/shared/dom.js").Shape[]} */
  const shapes = [["path", { d: `M${middle} 0v12`, stroke: "var(--rp-line2)" }]];
  if (wide >= 0.8) shapes.push(["rect", verdict === "worse" ? hollow : solid]);
  return svg(WIDE, 12, ...shapes);
}

let table = null, body = null, subtitle = null;

export function mount(element) {
  const key = svg(10, 8, ["rect", { x: 0, y: 1, width: 8, height: 6, fill: "var(--rp-ink)" }]);
  body = make("tbody");
  table = make("table", "rp-lab-table rp-lab-res", abHead("metric", "B / A", make("span", "", key, "better")), body);
  subtitle = fillPanel(element, table);
  showOn(show, "document", "summary", "library");
}

function row(metric) {
  const { name, title, a, b, a_range, b_range, ratio, verdict } = metric;
  const { unit, values } = format.inUnit(metric.unit, [a, ...a_range, b, ...b_range]), half = values.length / 2;
  const watched = lab.scenario && lab.scenario.watch === name ? "rp-watched" : "";
  const drawing = make("td", "", bar(ratio, verdict), make("span", "rp-said", VERDICTS[verdict] || ""));
  const figures = ARMS.map((arm, i) => figure(arm, values.slice(i * half, (i + 1) * half), unit));
  const look = { className: watched, "data-metric": name, "data-verdict": verdict };
  const head = rowHead(meaning(name), title, " ", make("small", "", unit));
  return make("tr", look, head, ...figures, make("td", "", format.ratio(ratio)), drawing);
}

function figure(arm, values, unit) {
  const [value, ...range] = values;
  const td = make("td", arm.toLowerCase(), format.figure(value), make("small", "rp-range", format.range(range)));
  if (range[0] !== null) td.title = `${arm}: ${range.map(format.figure).join(" to ")} ${unit} over the repeats`;
  return td;
}

function same(yes) {
  const cells = [rowHead(meaning("same_tokens"), "Same tokens"), make("td", { colSpan: 4 }, yes ? "yes" : "no")];
  return make("tr", { "data-metric": "same_tokens" }, ...cells);
}

/* The row of a figure before there is a result. */
const empty = (figure) => ({ ...figure, a: null, b: null, a_range: [null], b_range: [null], ratio: null });

function show() {
  const summary = lab.document && lab.document.summary, repeats = lab.document && lab.document.repeats;
  const once = summary && lab.document.arms.A.simulated ? "each simulated once" : "one repeat";
  write(subtitle, !summary ? "" : repeats > 1 ? `medians of ${repeats} repeats` : once);
  const about = summary ? { model: lab.document.model, dtype: lab.document.dtype, ...lab.document.environment } : {};
  const known = Object.entries(about).filter(([, value]) => value !== null);
  subtitle.title = known.map(([name, value]) => `${name}: ${value}`).join("\n");
  table.classList.toggle("rp-ranges", repeats > 1);
  const figures = (lab.catalogue && lab.catalogue.figures) || [];
  const measured = summary && [same(summary.same_tokens), ...summary.metrics.map(row)];
  body.replaceChildren(...(measured ?? figures.map(empty).map(row)));
}
