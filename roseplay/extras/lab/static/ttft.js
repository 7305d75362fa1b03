/* Time to first token of a result as a cumulative distribution. */
import { drawAxes } from "page/shared/chart/axes.js";
import { evenTimes, linear } from "page/shared/chart/scale.js";
import { format } from "page/shared/format.js";
import { niceAxis, quantile } from "page/shared/numbers.js";
import { sharp } from "page/shared/pen.js";
import { both, drawCurve, drawLimit, filled, last, MARGIN, samplesOf } from "./distributions.js";
import { lookOf, readBeside, ring } from "./draw.js";
import { ARMS, lab } from "./state.js";
import { createView } from "./view.js";

const { amount } = format;
/** @type {[string, number][]} */
const SHARES = [["0", 0], ["p25", 0.25], ["p50", 0.5], ["p75", 0.75], ["p95", 0.95]];
const PARTS = 5;

const firsts = samplesOf((run) => run.requests.map((request) => request.ttft_ms));

export function mount(element) {
  createView(element, {
    name: "Time to first token",
    subtitle: "share of requests",
    margin: MARGIN,
    draw,
    read,
    describe,
    keys: { ArrowLeft: readBeside(-8), ArrowRight: readBeside(8) },
  });
}

function axes(area) {
  const arms = firsts(), most = Math.max(1, ...filled(arms).map(last), arms ? lab.limits.ttft_ms : 1000);
  const { max, step } = niceAxis(most, PARTS);
  return { arms, max, step, x: linear(0, max, area.x0, area.x1) };
}

function draw(pen, area, T) {
  const scale = axes(area);
  const y = linear(0, 1.02, area.y1, area.y0), up = SHARES.map(([words, share]) => ({ at: y(share), words }));
  drawAxes(pen, area, { x: evenTimes(scale.x, PARTS, scale.step), y: up }, T);
  if (!scale.arms) return;
  drawLimit(pen, scale.x(lab.limits.ttft_ms), `limit ${amount(lab.limits.ttft_ms)}`, area, T);
  for (const arm of ARMS) {
    if (scale.arms[arm].pooled.length) curves(pen, arm, scale, y, area, T);
  }
}

function curves(pen, arm, { arms, x }, y, area, T) {
  const stairs = (sorted) => {
    const points = [[area.x0, y(0)]];
    sorted.forEach((value, i) => points.push([x(value), y(i / sorted.length)], [x(value), y((i + 1) / sorted.length)]));
    return [...points, [area.x1, y(1)]];
  };
  const look = lookOf(arm, T), p95 = quantile(arms[arm].pooled, 0.95);
  drawCurve(pen, arms[arm], stairs, look);
  ring(pen, x(p95), y(0.95), look.color, T);
  const left = x(p95) > area.x1 - 48 || (arm === "A" && x(p95) > area.x0 + 48);
  const align = left ? "right" : "left";
  pen.text(amount(p95), left ? x(p95) - 8 : x(p95) + 6, y(0.95) + (left ? 4 : 14), look.color, align, true);
}

function read(area, { x: px }) {
  if (px < area.x0 || px > area.x1) return null;
  const scale = axes(area), value = scale.x.value(px);
  const marks = (pen, area, T) => pen.line(sharp(px), area.y0, sharp(px), area.y1, T.line2, [2, 3]);
  const within = (all) => format.percent((100 * all.filter((one) => one <= value).length) / all.length, 0);
  return { words: `within ${amount(value)}: ${both(scale.arms, within)}`, marks };
}

function describe() {
  const say = (all) =>
    `p50 ${amount(quantile(all, 0.5))}, p95 ${amount(quantile(all, 0.95))} of ${all.length} requests`;
  return `Time to first token, share of requests by time. ${both(firsts(), say)}.`;
}
