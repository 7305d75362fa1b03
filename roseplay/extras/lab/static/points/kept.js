/* Goodput of a sweep: a bar for each value, the peak dark, in an outline of all requests that were answered; with two
 * arms, that of B beside it, in rose. */
import { drawBase, drawLevels, drawWords } from "page/shared/chart/axes.js";
import { evenTicks, linear } from "page/shared/chart/scale.js";
import { format } from "page/shared/format.js";
import { niceAxis } from "page/shared/numbers.js";
import { sharp } from "page/shared/pen.js";
import { fade } from "page/shared/theme.js";
import { lookOf, nextMark } from "../draw.js";
import { lab, shownPoints } from "../state.js";
import { createView } from "../view.js";
import { evenAxis, valueAxis } from "./axes.js";
import { armWords } from "./curve.js";
import { allRows, armsOf, rowsOf, summaryOf, valueWords } from "./document.js";

const PARTS = 3, MOST_WIDE = 24;

export function mount(element) {
  createView(element, {
    name: "Goodput",
    subtitle: "requests/s within both limits, at each value; the outline is all requests",
    margin: { l: 44, r: 18, t: 14, b: 18 },
    has: () => lab.mode === "sweep" && rowsOf(shownPoints()).length > 0,
    draw,
    read,
    describe,
    keys: { ArrowLeft: step(-1), ArrowRight: step(1) },
  });
}

const good = (row) => row.figures.goodput_req_s.median || 0;

/* All requests per second, those that are not within the limits too; as low as goodput where that is 0. */
const answerRate = (row) => (good(row) && (100 * good(row)) / row.figures.kept_pct.median);

function scaleOf(area) {
  const document = shownPoints(), arms = armsOf(document), rate = document.setting === "rate_per_s";
  const rows = allRows(document).map(({ row }) => row);
  const values = document.asked || document.grid,
    across = rate && !document.doubles ? evenAxis(values, area) : valueAxis(values, area, rate);
  const highest = Math.max(0.1, ...rows.map(answerRate)), { max, step: each } = niceAxis(highest, PARTS);
  const wide = Math.min(MOST_WIDE, (0.6 * area.width) / Math.max(1, values.length)) / arms.length;
  const y = linear(0, max, area.y1, area.y0);
  return { document, arms, rows, across, y, each, wide };
}

function draw(pen, area, T) {
  if (lab.mode !== "sweep" || !rowsOf(shownPoints()).length) return;
  const scale = scaleOf(area), { document, arms, across, y, each } = scale;
  drawLevels(pen, area, evenTicks(y, PARTS, each), T);
  drawWords(pen, area, across.ticks, T);
  for (const arm of arms) bars(pen, area, T, scale, rowsOf(document, arm), summaryOf(document, arm).peak, arm);
  drawBase(pen, area, T);
}

function bars(pen, area, T, { arms, across, y, wide }, rows, peak, arm) {
  const { color } = lookOf(arm, T), left = arms.indexOf(arm) - arms.length / 2;
  rows.forEach((row, i) => {
    const x = across.x(row) + left * wide, top = y(good(row));
    const shade = i === peak ? color : arm === "A" ? T.decode : fade(color, 0.45);
    pen.fill(shade, x, top, wide, area.y1 - top);
    const all = sharp(y(answerRate(row))), x0 = sharp(x), x1 = x0 + Math.round(wide);
    pen.path([[x0, area.y1], [x0, all], [x1, all], [x1, area.y1]], T.ink3, 1, [1, 2]);
    if (i === peak) pen.text(format.figure(good(row)), x + wide / 2, top - 4, color, "center", true);
  });
}

function words({ setting }, { arm, row }) {
  const { goodput_req_s: goodput, kept_pct: kept } = row.figures;
  return `${armWords(arm)}${valueWords(setting, row.value)}: ${format.spread(goodput, "requests/s")}, ` +
    `${format.percent(kept.median)} of the requests`;
}

function read(area, point) {
  const { document, rows, across } = scaleOf(area);
  const near = [...rows].sort((a, b) => Math.abs(across.x(a) - point.x) - Math.abs(across.x(b) - point.x))[0];
  if (!near) return null;
  const x = across.x(near), here = allRows(document).filter(({ row }) => row.value === near.value);
  return {
    words: here.map((entry) => words(document, entry)).join("; "),
    marks: (pen, all, T) => pen.line(sharp(x), all.y0, sharp(x), all.y1, T.line2),
  };
}

const step = (by) => nextMark(marks, ({ row }) => row, by);

function marks(area) {
  const { document, across } = scaleOf(area);
  return rowsOf(document).map((row) => ({ x: across.x(row), y: area.y1, row }));
}

function describe() {
  const document = shownPoints();
  return `Goodput by value. ${allRows(document).map((entry) => words(document, entry)).join(". ")}.`;
}
