/* One latency of a sweep against throughput, or of a search against the value: a mark for each measured value, filled
 * if it keeps both limits. */
import { drawAxes } from "page/shared/chart/axes.js";
import { make } from "page/shared/dom.js";
import { format } from "page/shared/format.js";
import { legendEntry, legendLine } from "page/shared/legend.js";
import { sharp } from "page/shared/pen.js";
import { lookOf, nextMark } from "../draw.js";
import { lab, shownPoints, showOn } from "../state.js";
import { createView } from "../view.js";
import { latencyAxis, throughputAxis, valueAxis } from "./axes.js";
import { allRows, answerRow, armsOf, plainValue, rowsOf, settingLabel, summaryOf, valueWords } from "./document.js";

const NEAR_PX = 30, NUMBERED_PX = 8, APART_PX = 28;
const MARGIN = { l: 44, r: 18, t: 16, b: 18 };

/** The words before a value of an arm: "A, ", or "" if there is only one. */
export const armWords = (arm) => (arm ? `${arm}, ` : "");

/** @param {{figure: string, limit: "ttft_ms" | "itl_ms", name: string, percentile: string}} what */
export function mountCurve(element, what) {
  const legend = element.querySelector(".rp-rt");
  const scale = (area) => scaleOf(area, what);
  const step = (by) => nextMark((area) => scale(area)?.marks ?? [], ({ row }) => row, by);
  createView(element, {
    name: `${what.name}, ${what.percentile}`,
    subtitle: () => subtitle(what.percentile),
    margin: MARGIN,
    has: () => rowsOf(shownPoints()).length > 0,
    draw: (pen, area, T) => draw(pen, area, T, what, scale(area)),
    read: (area, point) => read(area, point, what, scale(area)),
    describe: () => describe(what),
    keys: { ArrowLeft: step(-1), ArrowRight: step(1) },
  });
  showOn(() => legend.replaceChildren(...entries()), "points", "mode", "document");
}

/* The sweep before the one shown, if both vary the same setting of one arm under the same traffic. */
function earlierSweep() {
  const now = shownPoints();
  if (lab.mode !== "sweep" || !now) return null;
  // While a sweep is being measured, the previous one is the one shown last.
  const then = now === lab.points.sweep ? lab.earlierSweep : lab.points.sweep;
  const same = then && then.setting === now.setting && then.scenario === now.scenario;
  return same && armsOf(then).length + armsOf(now).length === 2 ? then : null;
}

function subtitle(percentile) {
  const find = lab.mode === "find", { setting } = lab.asked[find ? "find" : "sweep"];
  if (find) return `${percentile}, log, by ${settingLabel(setting).toLowerCase()}; the tries in order`;
  const across = setting === "rate_per_s" ? "against throughput" : `by ${settingLabel(setting).toLowerCase()}`;
  return `${percentile}, log, ${across}`;
}

function entries() {
  const before = earlierSweep(), arms = armsOf(shownPoints());
  if (arms.length > 1) {
    return [legendEntry(legendLine("ink", 1.75), "A"), legendEntry(legendLine("rose", 1.75, "5 3"), "B")];
  }
  if (lab.mode === "find") return [make("span", "rp-lg", "● within both limits"), make("span", "rp-lg", "○ not")];
  if (!before) return [];
  return [
    legendEntry(legendLine("ink", 1.75), "this sweep"),
    legendEntry(legendLine("ink3", 1.25, "4 3"), "previous sweep"),
  ];
}

/* The rows in order of the axis, the axes, and the position of each mark, with its arm if there are two. */
function scaleOf(area, { figure, limit }) {
  const document = shownPoints(), rows = allRows(document);
  if (!rows.length) return null;
  const entries = rows.filter(({ row }) => row.figures[figure].median !== null), known = entries.map(({ row }) => row);
  const before = rowsOf(earlierSweep()).filter((row) => row.figures[figure].median !== null);
  const most = document.limits[limit];
  const all = [...known, ...before].flatMap((row) => [row.figures[figure].median, ...row.figures[figure].range]);
  const across = document.setting === "rate_per_s"
    ? throughputAxis([...known, ...before], area)
    : valueAxis(document.grid || document.asked, area);
  const up = latencyAxis([...all, most], area);
  const place = (row, arm) => ({ arm, row, x: across.x(row), y: up.y(row.figures[figure].median) });
  const marks = entries.map(({ arm, row }) => place(row, arm));
  return { document, most, across, up, marks, before: before.map((row) => place(row, "")) };
}

function draw(pen, area, T, what, scale) {
  if (!scale) return;
  const { document, up, across, marks, before, most } = scale, level = up.y(most);
  pen.fill(T.well, area.x0, level, area.width, area.y1 - level);
  drawAxes(pen, area, { x: across.ticks, y: up.ticks }, T);
  pen.line(area.x0, sharp(level), area.x1, sharp(level), T.ink3, [1, 2]);
  // At the end that is farther from the answer, whose name stands above it.
  const right = marks.some(({ row, x }) => row === answerRow(document) && 2 * x < area.x0 + area.x1);
  const [end, align] = right ? [area.x1 - 6, "right"] : [area.x0 + 6, "left"];
  pen.text(`limit ${format.amount(most)}`, end, level - 5, T.ink3, align);
  pen.path(before.map(pointOf), T.ink3, 1, [4, 3]);
  if (document.kind === "find") {
    pen.path([...marks].sort((a, b) => a.x - b.x).map(pointOf), T.line2, 1);
    for (const mark of marks) spread(pen, mark, what.figure, up, T.ink3);
    return tries(pen, area, T, document, marks);
  }
  for (const arm of armsOf(document)) {
    const dots = marks.filter((mark) => (mark.arm || "A") === arm), { color, dash } = lookOf(arm, T);
    pen.path(dots.map(pointOf), color, 1.75, dash);
    for (const mark of dots) spread(pen, mark, what.figure, up, arm === "A" ? T.ink3 : color);
    values(pen, area, T, document, dots, what.figure, up);
  }
}

const pointOf = ({ x, y }) => [x, y];

/* The range over the repeats. */
function spread(pen, { row, x }, figure, up, color) {
  const [low, high] = row.figures[figure].range;
  if (low !== high) pen.line(sharp(x), up.y(low), sharp(x), up.y(high), color);
}

const dot = (pen, x, y, r, filled, T, color = T.ink) => pen.circle(x, y, r, filled ? color : T.surface, color);

/* For an arm of a sweep: the values above their marks where there is room, and the knee. B has only its knee. */
function values(pen, area, T, document, marks, figure, up) {
  let free = -Infinity;
  for (const { arm, row, x, y } of marks) {
    const { knee, points } = summaryOf(document, arm || "A"), { color } = lookOf(arm || "A", T);
    const top = Math.min(y, up.y(row.figures[figure].range[1])) - 8, words = valueWords(document.setting, row.value);
    dot(pen, x, y, 3.5, row.kept, T, color);
    const bent = knee !== null && row === points[knee];
    if (bent) ring(pen, x, y, T);
    if (arm === "B") continue;
    if (bent) {
      pen.line(sharp(x), y + 8, sharp(x), area.y1, T.ink, [1, 2]);
      const right = x < area.x0 + 110;
      pen.text(`knee: ${words}`, right ? x - 6 : x + 6, top - 2, T.ink, right ? "left" : "right", true);
      free = x;
    } else if (Math.abs(x - free) > APART_PX) {
      pen.text(plainValue(document.setting, row.value), x, top, T.ink3, "center");
      free = x;
    }
  }
}

const ring = (pen, x, y, T) => pen.circle(x, y, 7, null, T.ink, 1.25);

/* For a search: the tries with their numbers, and the answer. */
function tries(pen, area, T, document, marks) {
  const answer = answerRow(document), { g } = pen;
  for (const { row, x, y } of marks) {
    if (row === answer) pen.line(sharp(x), area.y0 - 10, sharp(x), area.y1, T.rose);
    dot(pen, x, y, NUMBERED_PX, row.kept, T);
    g.font = '700 10px "RP Mono", monospace';
    g.textAlign = "center";
    g.fillStyle = row.kept ? T.surface : T.ink;
    g.fillText(String(rowsOf(document).indexOf(row) + 1), x, y + 3.5);
  }
  const mark = marks.find(({ row }) => row === answer);
  if (!mark) return;
  const right = mark.x < area.x1 - 120,
    words = `${settingLabel(document.setting).toLowerCase()} ${format.limit(answer.value)}`;
  pen.text(words, mark.x + (right ? 6 : -6), area.y0 - 3, T.rose, right ? "left" : "right", true);
}

function read(_area, point, { figure }, scale) {
  if (!scale) return null;
  const far = (mark) => Math.hypot(mark.x - point.x, (mark.y - point.y) / 2);
  const nearest = [...scale.marks].sort((a, b) => far(a) - far(b))[0];
  if (!nearest || (!point.mark && far(nearest) > NEAR_PX)) return null;
  return { words: words(scale.document, nearest, figure), marks: (pen, _all, T) => ring(pen, nearest.x, nearest.y, T) };
}

function words({ setting }, { arm, row }, figure) {
  const rate = row.figures.output_tokens_per_s, value = `${armWords(arm)}${valueWords(setting, row.value)}`;
  const parts = [`${value}: ${format.spread(row.figures[figure], "ms")}`];
  if (rate) parts.push(`${format.figure(rate.median)} tok/s`);
  return [...parts, row.kept ? "both limits kept" : "a limit exceeded"].join(", ");
}

function describe({ figure, name, percentile }) {
  const document = shownPoints();
  return `${name}, ${percentile}. ${allRows(document).map((entry) => words(document, entry, figure)).join(". ")}.`;
}
