/* The distribution of time to first token, a step curve that rises by one request at its TTFT.
 *
 * The last burst is solid ink, the one with which the sentence compares it dashed. Without a burst, the curves
 * are of what was answered in the time shown, since the latest change of a setting and before. The last one's p50 is
 * ringed. */
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { legendEntry, legendLine } from "../shared/legend.js";
import { niceAxis, quantile } from "../shared/numbers.js";
import { slowedFirst } from "../shared/past.js";
import { store } from "../shared/store.js";
import { time } from "../shared/time.js";
import { Chart } from "./chart.js";
import { demos } from "./demos.js";
import { begunIn } from "./gaps.js";
import { knobMarks } from "./knobmarks.js";
import { annotation, beside, dotTrace, lineTrace } from "../shared/chart/shapes.js";
import { view } from "./view.js";

let panel = null, legend = "";
/** @type {import("../shared/records.js").DemoCaption["clients"]} */
let groups; // what the latest demo measured of its clients, shown until others are answered
let demoBegan = -Infinity, during = false; // when the latest demo began, and whether it is playing

export function mount(element) {
  const margin = { l: 38, r: 12, t: 8, b: 18 };
  panel = new Chart(element, { name: "ttft", every: 8, margin, nothing: "How soon answers begin.", draw });
}

on("reset", () => (demoBegan = -Infinity));

function draw(frame) {
  const curves = collect();
  showLegend(curves);
  if (!curves.length) {
    return { empty: true, layout: axes(100, frame), summary: "Time to first token. No first token yet." };
  }
  const { T } = frame, last = curves[curves.length - 1];
  const layout = axes(Math.max(...curves.map((curve) => curve.ttft[curve.ttft.length - 1])), frame);
  const max = layout.xaxis.range[1];
  const older = { color: T.ink3, width: 1.5, dash: [4, 3] };
  const looks = (curve) => (curve === last ? { color: T.ink, width: 1.5 } : older);
  const traces = curves.map((curve) => lineTrace(...stairs(curve.ttft, max), looks(curve)));
  addMedian(traces, layout, quantile(last.ttft, 0.5), frame);
  return { traces, layout, summary: ["Time to first token.", ...curves.map(account)].join(" ") };
}

function account({ name, slow, ttft }) {
  const [p50, p95] = [0.5, 0.95].map((q) => format.ms(quantile(ttft, q)));
  return `${name}: p50 ${p50} ms, p95 ${p95} ms${slow} of ${ttft.length} requests.`;
}

/* [{name, ttft (sorted, ms)}], the newest last. */
function collect() {
  if (demos.caption && !during) demoBegan = demos.caption.begun;
  during = Boolean(demos.caption);
  const now = demos.caption?.clients, others = [...store.requests.values()].filter(({ kind }) => kind !== "api");
  groups = now ?? groups;
  if (!groups || (!now && others.some(({ first }) => first > groups[groups.length - 1][2]))) return collectBursts();
  return groups.map(clients).filter(({ ttft }) => ttft.length);
}

/** What a demo measured of its clients. @param {[number, number, number, string]} group */
function clients([count, since, until, mean]) {
  const theirs = ({ kind, first }) => kind === "api" && first >= since && first <= until;
  return curve(`${count}: ${mean}`, [...store.requests.values()].filter(theirs));
}

function collectBursts() {
  const begun = ({ requests }) => requests.some(({ ttft_ms, submitted }) => ttft_ms !== null && submitted >= demoBegan);
  const bursts = [...store.bursts.values()].filter(begun).sort((a, b) => a.id - b.id), last = bursts.pop();
  const shown = bursts.filter(({ id }) => id === last.compared);
  if (last) return [...shown, last].map(({ id, requests }) => curve(`burst ${id}`, requests));
  const shownNow = begunIn(view.latest(time.now())), changedAt = knobMarks().pop()?.t ?? -Infinity;
  const before = curve("before the change", shownNow.filter(({ submitted }) => submitted < changedAt));
  const since = curve(`last ${view.span / 1000} s`, shownNow.filter(({ submitted }) => submitted >= changedAt));
  return [before, since].filter(({ ttft }) => ttft.length);
}

function curve(name, requests) {
  const done = requests.filter((request) => request.ttft_ms !== null);
  return { name, slow: slowedFirst(done), ttft: Float64Array.from(done, ({ ttft_ms }) => ttft_ms).sort() };
}

function axes(most, { width, T }) {
  const parts = width < 190 ? 2 : 3, { max, step } = niceAxis(most, parts);
  const tickvals = Array.from({ length: parts + 1 }, (_, i) => i * step),
    round = (v) => v < 1000 ? String(+v.toPrecision(6)) : format.count(v);
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

function showLegend(curves) {
  const last = curves[curves.length - 1];
  const names = curves.map((one) => one.name + (one === last || one.slow !== last.slow ? one.slow : ""));
  if (names.join() === legend) return;
  legend = names.join();
  panel.show(...names.map((name, i) => {
    const last = i === curves.length - 1;
    return legendEntry(last ? legendLine("ink", 1.5) : legendLine("ink3", 1.5, "4 3"), name);
  }));
}
