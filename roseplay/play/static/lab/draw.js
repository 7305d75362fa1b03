/* Strokes that the views of a result share. */
import { format } from "../shared/format.js";

/** How an arm is drawn: A in ink, solid; B in rose, dashed. */
export const lookOf = (arm, T) => (arm === "A" ? { color: T.ink, dash: [] } : { color: T.rose, dash: [5, 3] });

/** A letter on its square, as in the table's head. */
export function badge(pen, arm, x, y, T) {
  pen.g.fillStyle = arm === "A" ? T.ink : T.rosefill;
  pen.g.beginPath();
  pen.g.roundRect(x, y, 14, 14, 2);
  pen.g.fill();
  pen.g.font = '700 10px "RP Mono", monospace';
  pen.g.textAlign = "center";
  pen.g.fillStyle = arm === "A" ? T.surface : "#ffffff";
  pen.g.fillText(arm, x + 7, y + 10.5);
}

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
export const plain = (value) => (value >= 1000 ? format.count(value) : String(+value.toPrecision(6)));

export const ascending = (values) => Float64Array.from(values.filter((value) => value !== null)).sort();
