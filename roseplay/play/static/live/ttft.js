/* The distribution of time to first token, a step curve that rises by one request at its TTFT.
 *
 * The last burst is solid ink, the one before dashed; without a burst, the curve is of what was answered in the time
 * shown. The last curve's p50 is ringed. Since there is no time axis that could show a change of settings, the p50 of
 * earlier requests is marked: the curve since the change is left of it (better) or right. */
import { format } from "../shared/format.js";
import { legendEntry, legendLine } from "../shared/legend.js";
import { median, niceAxis, quantile } from "../shared/numbers.js";
import { store } from "../shared/store.js";
import { time } from "../shared/time.js";
import { createChart } from "./chart.js";
import { begunIn } from "./gaps.js";
import { knobMarks } from "./knobmarks.js";
import { annotation, beside, dotTrace, lineTrace, verticalLine } from "../shared/chart/shapes.js";
import { view } from "./view.js";

const CHAR_PX = 6.1;

let head = null, summary = "No first token yet.", legend = "";

export function mount(element) {
  head = element.querySelector(".rp-rt");
  const margin = { l: 38, r: 12, t: 8, b: 18 };
  const nothing = "How soon answers begin.", describe = () => `Time to first token. ${summary}`;
  createChart(element, { name: "ttft", every: 8, margin, nothing, draw, describe });
}

function draw(frame) {
  const curves = collect();
  showLegend(curves);
  if (!curves.length) {
    summary = "No first token yet.";
    return { empty: true, layout: axes(100, frame) };
  }
  const { T } = frame;
  const last = curves[curves.length - 1];
  const layout = axes(Math.max(...curves.map((curve) => curve.ttft[curve.ttft.length - 1])), frame);
  layout.shapes = [];
  const max = layout.xaxis.range[1];
  const older = { color: T.ink3, width: 1.5, dash: "4px,3px" };
  const looks = (curve) => (curve === last ? { color: T.ink, width: 1.5 } : older);
  const traces = curves.map((curve) => lineTrace(...stairs(curve.ttft, max), looks(curve)));
  addEarlier(traces, layout, curves, frame);
  addMedian(traces, layout, quantile(last.ttft, 0.5), frame);
  summary = curves.map(account).join(" ");
  return { traces, layout };
}

function account({ name, ttft }) {
  const [p50, p95] = [0.5, 0.95].map((q) => format.ms(quantile(ttft, q)));
  return `${name}: p50 ${p50} ms, p95 ${p95} ms of ${ttft.length} requests.`;
}

/* [{name, requests, ttft (sorted, ms)}], the last burst last. */
function collect() {
  const bursts = [...store.bursts.values()].sort((a, b) => a.id - b.id);
  const groups = bursts.map((burst) => curve(`burst ${burst.id}`, burst.requests));
  const some = groups.filter((group) => group.ttft.length);
  if (some.length) return some.slice(-2);
  const latest = curve(`last ${view.span / 1000} s`, begunIn(view.latest(time.now())));
  return latest.ttft.length ? [latest] : [];
}

function curve(name, requests) {
  const done = requests.filter((request) => request.ttft !== null);
  return { name, requests: done, ttft: Float64Array.from(done, (request) => request.ttft).sort() };
}

function axes(most, { width, T }) {
  const parts = width < 190 ? 2 : 3, { max, step } = niceAxis(most, parts);
  const tickvals = Array.from({ length: parts + 1 }, (_, i) => i * step), round = (v) => String(+v.toPrecision(6));
  return {
    xaxis: { range: [0, max], tickmode: "array", tickvals, ticktext: [...tickvals.slice(0, -1).map(round), ""] },
    annotations: [{
      ...annotation(T, "unit", `${round(max)} ms`, T.ink3),
      ...{ xref: "paper", x: 1, xanchor: "right", xshift: 8 },
      ...{ yref: "paper", y: 0, yanchor: "top", yshift: -5 },
    }],
    yaxis: { range: [0, 1.04], tickmode: "array", tickvals: [0, 0.5, 0.95], ticktext: ["0", "p50", "p95"] },
  };
}

function stairs(sorted, max) {
  const x = [0], y = [0];
  sorted.forEach((v, i) => {
    x.push(v, v);
    y.push(i / sorted.length, (i + 1) / sorted.length);
  });
  x.push(max);
  y.push(1);
  return [x, y];
}

function addMedian(traces, layout, p50, { T }) {
  const left = p50 > layout.xaxis.range[1] * 0.75; // there is no room at its right
  const ring = { size: 7, color: T.surface, line: { color: T.ink, width: 1.5 } };
  traces.push(dotTrace([p50], [0.5], ring));
  const words = annotation(T, "p50", format.shortMs(p50), T.ink, true);
  layout.annotations.push({ ...words, ...beside(p50, left, 6), y: 0.5, yanchor: "top", yshift: -2 });
}

/* Add the p50 of requests before the latest change of a setting: a short dashed stem up to the level of medians with a
 * hollow ring, since a line through the plot would look like a point in time. */
function addEarlier(traces, layout, curves, { T, width }) {
  const marks = knobMarks(), requests = curves.flatMap((one) => one.requests), mark = marks[marks.length - 1];
  const before = mark ? requests.filter((request) => request.submitted < mark.t).map((request) => request.ttft) : [];
  if (!before.length || before.length === requests.length) return;
  const x = median(before), left = x / layout.xaxis.range[1] > 0.5;
  layout.shapes.push({ ...verticalLine("earlier p50", x, T.ink3, "2px,3px"), yref: "y", y1: 0.5, layer: "below" });
  traces.push(dotTrace([x], [0.5], { size: 5, color: T.surface, line: { color: T.ink3, width: 1 } }));
  const words = `p50 ${format.shortMs(x)} before`, max = layout.xaxis.range[1], room = (left ? x : max - x) / max;
  if (words.length * CHAR_PX > width * room - 8) return;
  const text = annotation(T, "earlier p50", words, T.ink3);
  layout.annotations.push({ ...text, ...beside(x, left, 5), y: 0, yanchor: "bottom", yshift: 2 });
}

function showLegend(curves) {
  const names = JSON.stringify(curves.map(({ name }) => name));
  if (names === legend) return;
  legend = names;
  head.replaceChildren(...curves.map(({ name }, i) => {
    const last = i === curves.length - 1;
    return legendEntry(last ? legendLine("ink", 1.5) : legendLine("ink3", 1.5, "4 3"), name, "rp-roomy");
  }));
}
