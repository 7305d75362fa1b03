/* Inter-token latency of a result as a tail plot: the share of gaps on a scale of -log10(1 - p), so that each further
 * nine takes equal space; gaps on a log scale. */
import { drawAxes } from "page/shared/chart/axes.js";
import { linear, logarithmic, logTimes, logValues } from "page/shared/chart/scale.js";
import { make } from "page/shared/dom.js";
import { format } from "page/shared/format.js";
import { given } from "page/shared/given.js";
import { legendEntry, legendLine } from "page/shared/legend.js";
import { quantile } from "page/shared/numbers.js";
import { CHAR_PX, sharp } from "page/shared/pen.js";
import { both, drawCurve, drawLimit, filled, last, MARGIN, samplesOf } from "./distributions.js";
import { lookOf, ring, serverName } from "./draw.js";
import { ARMS, lab, showOn } from "./state.js";
import { createView } from "./view.js";

const { amount } = format;
/** @type {[string, number][]} */
const LEVELS = [["0", 0], ["p50", 0.5], ["p90", 0.9], ["p99", 0.99], ["p99.9", 0.999], ["p99.99", 0.9999]];
const ASIDE_PX = 8; // of the words beside a curve
const height = (p) => -Math.log10(1 - p);

const gaps = samplesOf((run) => run.itl_ms.filter(Boolean));

export function mount(element) {
  createView(element, {
    name: "Inter-token latency",
    subtitle: "share of pauses at most this long; both axes log, the tail on top",
    margin: MARGIN,
    draw,
    read,
    describe,
    keys: { ArrowUp: (point, area) => step(point, area, -6), ArrowDown: (point, area) => step(point, area, 6) },
  });
  const head = element.querySelector(".rp-rt");
  showOn(() => head.replaceChildren(...ARMS.map(legendOf)), "document");
}

function step(point, area, by) {
  const y = point ? point.y + by : (area.y0 + area.y1) / 2;
  return { x: area.x0, y: Math.max(area.y0, Math.min(area.y1, y)) };
}

/* The axes: gaps on x from `low` to `high`, the tail on y up to `top`; without a result, empty axes. */
function axes(area) {
  const arms = gaps(), values = filled(arms);
  const most = Math.max(2, ...values.map((all) => all.length));
  const low = values.length ? Math.min(...values.map((all) => Math.max(0.01, quantile(all, 0.02)))) / 1.15 : 1;
  const high = Math.max(low * 10, ...values.map(last), values.length ? lab.limits.itl_ms : 1000) * 1.15;
  const top = Math.max(2.2, Math.min(4.3, Math.log10(most) + 0.05));
  const x = logarithmic(low, high, area.x0, area.x1), y = linear(0, top, area.y1, area.y0);
  return { arms, low, high, top, x, y };
}

/* For each pixel row, the gap that this share of gaps does not exceed. */
function outline(sorted, { x, y: up }, area) {
  const points = [];
  for (let y = area.y1; y >= area.y0; y -= 0.5) {
    const i = Math.floor((1 - 10 ** -up.value(y)) * sorted.length);
    points.push([x(sorted[Math.min(i, sorted.length - 1)]), y]);
    if (i >= sorted.length - 1) break;
  }
  points.push([x(last(sorted)), area.y0]);
  return points;
}

function draw(pen, area, T) {
  const scale = axes(area);
  drawAxes(pen, area, ticks(scale, area), T);
  if (!scale.arms) return;
  drawLimit(pen, scale.x(lab.limits.itl_ms), `limit ${amount(lab.limits.itl_ms)}`, area, T);
  for (const arm of ARMS) {
    if (!scale.arms[arm].pooled.length) continue;
    drawCurve(pen, scale.arms[arm], (sorted) => outline(sorted, scale, area), lookOf(arm, T));
  }
  worst(pen, scale, area, T);
}

function ticks({ low, high, top, x, y }, area) {
  const levels = LEVELS.filter(([, p]) => height(p) <= top - 0.02);
  return {
    x: logTimes(x, logValues(low, high, area.width / 56)),
    y: levels.map(([words, p]) => ({ at: y(height(p)), words })),
  };
}

/* The longest gap of each arm, labelled at the top, to the left of its curve if there is room; where the two labels
 * would overlap, that of the shorter gap is on the second line. */
function worst(pen, { arms, x }, area, T) {
  const marks = ARMS.filter((arm) => arms[arm].pooled.length).map((arm) => {
    const most = last(arms[arm].pooled), words = `${arm} worst ${amount(most)}`;
    const at = x(most), wide = words.length * CHAR_PX, left = at - area.x0 > wide + ASIDE_PX;
    return { arm, words, left, at, from: left ? at - ASIDE_PX - wide : at + ASIDE_PX, wide };
  });
  marks.sort((a, b) => b.at - a.at).forEach(({ arm, words, left, at, from, wide }, i) => {
    const meets = i > 0 && from + wide + ASIDE_PX > marks[0].from;
    const y = area.y0 + (meets ? 24 : 10), color = lookOf(arm, T).color;
    pen.text(words, left ? at - ASIDE_PX : from, y, color, left ? "right" : "left", true);
  });
}

function read(area, { y }) {
  if (y < area.y0 || y > area.y1) return null;
  const scale = axes(area), tail = scale.y.value(y), p = 1 - 10 ** -tail;
  const value = (sorted) => sorted[Math.min(sorted.length - 1, Math.floor(p * sorted.length))];
  const name = `p${(100 * p).toFixed(Math.max(0, Math.ceil(tail) - 1))}`;
  const marks = (pen, area, T) => {
    pen.line(area.x0, sharp(y), area.x1, sharp(y), T.line2, [2, 3]);
    for (const arm of ARMS) {
      const { pooled } = scale.arms[arm];
      if (pooled.length) ring(pen, scale.x(value(pooled)), y, lookOf(arm, T).color, T);
    }
  };
  return { words: `${name}: ${both(scale.arms, (all) => amount(value(all)))}`, marks };
}

function describe() {
  const say = (all) => {
    const levels = [0.5, 0.95, 0.99].map((q) => `p${q * 100} ${amount(quantile(all, q))}`).join(", ");
    return `${levels}, worst ${amount(last(all))} of ${all.length} pauses`;
  };
  return `Inter-token latency, share of pauses by length. ${both(gaps(), say)}.`;
}

/* A label for an arm: the one value in which A and B differ, or the result's own words. */
function nameOf(arm) {
  if (!lab.document) return arm;
  const { knobs, config, differs, label } = lab.document.arms[arm];
  if (differs.includes("url")) {
    return `${arm} ${serverName(config.url, ARMS.map((each) => lab.document.arms[each].config.url))}`;
  }
  if (differs.length !== 1) return `${arm} ${label}`;
  const [name] = differs, setting = { ...given.settings.config, ...given.settings.knobs }[name];
  const value = format.value({ ...config, ...knobs }[name], setting);
  return `${arm} ${value === "∞" ? "unlimited" : value}`;
}

function legendOf(arm) {
  const line = arm === "A" ? legendLine("ink", 1.75) : legendLine("rose", 1.75, "5 3");
  const entry = legendEntry(line, make("span", "", nameOf(arm)), arm === "B" ? "rp-hand" : "");
  if (lab.document) entry.title = `${arm}: ${lab.document.arms[arm].label}`;
  return entry;
}
