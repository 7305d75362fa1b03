/* Goodput of a sweep: a bar for each value, the peak dark; with two arms, that of B beside it, in rose. */
import { drawBase, drawLevels, drawWords } from "../../shared/chart/axes.js";
import { evenTicks, linear } from "../../shared/chart/scale.js";
import { format } from "../../shared/format.js";
import { niceAxis } from "../../shared/numbers.js";
import { sharp } from "../../shared/pen.js";
import { fade } from "../../shared/theme.js";
import { lookOf, nextMark } from "../draw.js";
import { lab, shownPoints } from "../state.js";
import { createView } from "../view.js";
import { evenAxis, valueAxis } from "./axes.js";
import { armWords } from "./curve.js";
import { allRows, armsOf, rowsOf, summaryOf, valueWords } from "./document.js";

const PARTS = 3, MOST_WIDE = 24;

/** @param {HTMLElement} element */
export function mount(element) {
  createView(element, {
    name: "Goodput",
    subtitle: "requests/s that keep both promises, at each value",
    margin: { l: 44, r: 18, t: 14, b: 18 },
    has: () => lab.mode === "sweep" && rowsOf(shownPoints()).length > 0,
    draw,
    read,
    describe,
    keys: { ArrowLeft: step(-1), ArrowRight: step(1) },
  });
}

const good = (row) => row.figures.goodput_req_s.median || 0;

function scaleOf(area) {
  const document = shownPoints(), arms = armsOf(document), rate = document.setting === "rate_per_s";
  const rows = allRows(document).map(({ row }) => row);
  const values = document.asked || document.grid, across = (rate ? evenAxis : valueAxis)(values, area);
  const highest = Math.max(0.1, ...rows.map(good), ...(rate ? rows.map((row) => row.value) : []));
  const { max, step: each } = niceAxis(highest, PARTS);
  const wide = Math.min(MOST_WIDE, (0.6 * area.width) / Math.max(1, values.length)) / arms.length;
  const y = linear(0, max, area.y1, area.y0);
  return { document, arms, rows, rate, across, y, max, each, wide };
}

function draw(pen, area, T) {
  if (lab.mode !== "sweep" || !rowsOf(shownPoints()).length) return;
  const scale = scaleOf(area), { document, arms, rate, across, y, each } = scale;
  drawLevels(pen, area, evenTicks(y, PARTS, each), T);
  drawWords(pen, area, across.ticks, T);
  for (const arm of arms) bars(pen, area, T, scale, rowsOf(document, arm), summaryOf(document, arm).peak, arm);
  if (rate) diagonal(pen, area, scale, T);
  drawBase(pen, area, T);
}

function bars(pen, area, T, { arms, across, y, wide }, rows, peak, arm) {
  const { color } = lookOf(arm, T), left = arms.indexOf(arm) - arms.length / 2;
  rows.forEach((row, i) => {
    const x = across.x(row) + left * wide, top = y(good(row));
    const shade = i === peak ? color : arm === "A" ? T.decode : fade(color, 0.45);
    pen.fill(shade, x, top, wide, area.y1 - top);
    if (i === peak) pen.text(format.figure(good(row)), x + wide / 2, top - 4, color, "center", true);
  });
}

/* Where goodput would be if every request kept its promises. */
function diagonal(pen, area, { across, y, max, rows }, T) {
  const last = rows[rows.length - 1].value, end = Math.min(max, last);
  pen.line(across.place(0), y(0), across.place(end), y(end), T.ink3, [1, 2]);
  const x = across.place(end * 0.62);
  if (area.width > 360) pen.text("every promise kept", x - 6, y(end * 0.62) - 6, T.ink3, "right");
}

function words({ setting }, { arm, row }) {
  const { median, range } = row.figures.goodput_req_s, between = format.range(range);
  const kept = row.figures.kept_pct.median;
  const value = `${armWords(arm)}${valueWords(setting, row.value)}`;
  return `${value}: ${format.figure(median)} req/s${between ? ` (${between})` : ""}, ` +
    `${format.figure(kept)} % of the requests`;
}

function read(area, point) {
  const { document, rows, across } = scaleOf(area);
  const near = [...rows].sort((a, b) => Math.abs(across.x(a) - point.x) - Math.abs(across.x(b) - point.x))[0];
  if (!near) return null;
  const x = across.x(near), here = allRows(document).filter(({ row }) => row.value === near.value);
  return {
    words: here.map((found) => words(document, found)).join("; "),
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
  return `Goodput by value. ${allRows(document).map((found) => words(document, found)).join(". ")}.`;
}
