/* Strokes that the views of a result share. */
import { format } from "../shared/format.js";
import { sharp } from "../shared/pen.js";

/** How an arm is drawn: A in ink, solid; B in rose, dashed. */
export const lookOf = (arm, T) => (arm === "A" ? { color: T.ink, dash: [] } : { color: T.rose, dash: [5, 3] });

/** A level line of the grid, with its words at the left of the area. */
export function drawLevel(pen, area, y, words, T, color = T.grid) {
  pen.line(area.x0, sharp(y), area.x1, sharp(y), color);
  pen.text(words, area.x0 - 6, sharp(y) + 3.5, T.ink3, "right");
}

/** The words under an axis of so many equal parts; the last one has the unit. */
export function drawParts(pen, area, parts, step, unit, x, T) {
  for (let i = 0; i <= parts; i++) {
    const end = i === parts, words = `${plain(i * step)}${end ? ` ${unit}` : ""}`;
    if (i === parts - 1 && unit.length > 2 && area.width < 520) continue; // the unit reaches there
    pen.text(words, end ? area.x1 + 10 : x(i * step), area.y1 + 13, T.ink3, end ? "right" : "center");
  }
}

/** Moves what the keys read by so many px, within the area. */
export const readBeside = (area, point, by) => ({
  x: Math.max(area.x0, Math.min(area.x1, point ? point.x + by : (area.x0 + area.x1) / 2)),
  y: area.y1,
});

/** A line through points, in an arm's colour. `strong`: the one that counts, else one repeat of several. */
export function stroke(pen, points, { color, dash }, strong) {
  const { g } = pen;
  g.save();
  g.strokeStyle = color;
  g.lineWidth = strong ? 1.75 : 1;
  g.globalAlpha = strong ? 1 : 0.3;
  g.lineJoin = "round";
  g.setLineDash(strong ? dash : []);
  g.beginPath();
  points.forEach(([x, y], i) => (i ? g.lineTo(x, y) : g.moveTo(x, y)));
  g.stroke();
  g.restore();
}

/** A ring on the place that is read. */
export function ring({ g }, x, y, color, T) {
  g.fillStyle = T.surface;
  g.strokeStyle = color;
  g.lineWidth = 1.5;
  g.beginPath();
  g.arc(x, y, 3.5, 0, 2 * Math.PI);
  g.fill();
  g.stroke();
}

/**
 * Where a logarithmic axis from `low` to `high` is labelled: 1, 2 and 5 of each power of ten, or as few as fit
 * `most`.
 */
export function logTicks(low, high, most) {
  for (const firsts of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const first of firsts) {
        const value = first * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) found.push(+value.toPrecision(3));
      }
    }
    if (found.length <= most || firsts.length === 1) return found;
  }
}

/** A figure as an axis writes it: 1 000 is 1k. */
export const short = (value) => (value >= 1000 && value % 100 === 0 ? `${value / 1000}k` : String(value));

/** A figure on an axis of equal parts, with its thousands apart. */
const plain = (value) => (value >= 1000 ? format.count(value) : String(+value.toPrecision(6)));

export const ascending = (values) => Float64Array.from(values.filter((value) => value !== null)).sort();
