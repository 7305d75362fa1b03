/* The range in which the answer of a search can still be, after each try. */
import { drawAxes } from "page/shared/chart/axes.js";
import { format } from "page/shared/format.js";
import { sharp } from "page/shared/pen.js";
import { lab, shownPoints } from "../state.js";
import { createView } from "../view.js";
import { valueAxis } from "./axes.js";
import { answerRow, rowsOf } from "./document.js";

const MOST_HIGH = 22, WORDS_PX = 84;

export function mount(element) {
  createView(element, {
    name: "Where the answer can still be",
    subtitle: "after each try",
    margin: { l: 44, r: 18, t: 4, b: 18 },
    has: () => lab.mode === "find" && rowsOf(shownPoints()).length > 0,
    draw,
    read,
    describe,
  });
}

/* The range [low, high] before the first try and after each, from the best value so far on; or null. */
function ranges() {
  const document = shownPoints(), { grid } = document;
  let best = [];
  const after = rowsOf(document).map(({ left, kept, value }) => {
    if (kept) best = [value];
    const ends = [...best, ...(left || [])]; // a search goes on with greater values
    return ends.length ? [ends[0], ends[ends.length - 1]] : null;
  });
  return [[grid[0], grid[grid.length - 1]], ...after];
}

function draw(pen, area, T) {
  const document = shownPoints();
  if (!rowsOf(document).length || !document.grid) return;
  const { place, ticks } = valueAxis(document.grid, area), all = ranges(), answer = answerRow(document);
  const high = Math.min(MOST_HIGH, area.height / all.length);
  drawAxes(pen, area, { x: ticks, y: [] }, T);
  if (answer) pen.line(sharp(place(answer.value)), area.y0, sharp(place(answer.value)), area.y1, T.rose);
  all.forEach((range, i) => bar(pen, area, range, place, area.y0 + (i + 0.5) * high, i, T));
}

function bar(pen, area, range, place, y, i, T) {
  pen.text(i ? `try ${i}` : "before", area.x0 - 6, y + 3.5, T.ink3, "right");
  if (!range) return pen.text("none", area.x0 + 14, y + 3.5, T.ink3);
  const [low, high] = range, x0 = place(low), x1 = place(high), words = wordsOf(range);
  pen.fill(T.prompt, x0, y - 2.5, Math.max(2, x1 - x0), 5);
  for (const x of [x0, x1]) pen.line(sharp(x), y - 6, sharp(x), y + 6, T.ink);
  if (x1 + WORDS_PX < area.x1) pen.text(words, x1 + 8, y + 3.5, T.ink3);
  else if (x0 - WORDS_PX > area.x0) pen.text(words, x0 - 8, y + 3.5, T.ink3, "right");
  else {
    const at = (x0 + x1) / 2, half = pen.g.measureText(words).width / 2 + 4;
    pen.fill(T.surface, at - half, y - 4, 2 * half, 8); // the bar ends beside the words
    pen.text(words, at, y + 3.5, T.ink, "center");
  }
}

const wordsOf = (range) => (range ? [...new Set(range)].map(format.limit).join(" – ") : "none");

function read(area, { y }) {
  const all = ranges(), high = Math.min(MOST_HIGH, area.height / all.length);
  const i = Math.floor((y - area.y0) / high);
  if (i < 0 || i >= all.length) return null;
  return { words: `${i ? `after try ${i}` : "before the first try"}: ${wordsOf(all[i])}` };
}

function describe() {
  const parts = ranges().map((range, i) => `${i ? `after try ${i}` : "at first"} ${wordsOf(range)}`);
  return `Where the answer can still be: ${parts.join(", ")}.`;
}
