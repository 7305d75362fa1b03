/* The changes of settings in a stretch of time, with the words on their flags. */
import { format } from "../shared/format.js";
import { given } from "../shared/given.js";
import { CHAR_PX } from "../shared/pen.js";
import { store } from "../shared/store.js";
import { time } from "../shared/time.js";

const ASIDE_PX = 6, LINE_PX = 5; // of words beside a line
const ONE_HAND_MS = 1200; // changes of one knob closer than this are one drag of a slider

/** The value of a setting, in words. */
export function valueText(name, value) {
  return (name === "slow_motion" ? "×" : "") + format.value(value, given.settings.knobs[name]);
}

/** "budget 512 → 256", for one change or several. @param {Record<string, [any, any]>} changes */
function knobText(changes) {
  const parts = Object.entries(changes).map(([name, [before, after]]) => {
    const label = given.settings.knobs[name]?.short || name.replace(/_/g, " ");
    return `${label} ${valueText(name, before)} → ${valueText(name, after)}`;
  });
  return parts.length > 2 ? `${parts[0]} and ${parts.length - 1} more` : parts.join(", ");
}

/** Marks between two view times, oldest first; a slider's drag is one mark.
 * @returns {{x: number, t: number, step: number, changes: Record<string, [any, any]>, text: string}[]} */
export function knobMarks(x0 = -Infinity, x1 = Infinity) {
  const marks = [];
  for (const { t, step, changes } of store.marks) {
    const last = marks[marks.length - 1], names = Object.keys(changes).join();
    if (last && t - last.t < ONE_HAND_MS && names === Object.keys(last.changes).join()) {
      const merged = {};
      for (const name in changes) merged[name] = [last.changes[name][0], changes[name][1]];
      Object.assign(last, { t, step, changes: merged });
    } else marks.push({ t, step, changes });
  }
  const placed = marks.map((mark) => ({ ...mark, x: time.x(mark.t), text: knobText(mark.changes) }));
  return placed.filter((mark) => mark.x >= x0 && mark.x <= x1);
}

/** The words that fit beside their marks: none covers other words, and only the newest may cover another mark. The
 * newest are placed first, at the right of their marks if possible.
 * @template {{text: string}} M
 * @param {M[]} marks oldest first
 * @param {(mark: M) => number} at px of a mark
 * @param {number} from px where words may begin
 * @param {number} to px where they must end
 * @param {[number, number][]} taken stretches in px where words stand already; those placed are added
 * @returns {{mark: M, x: number, left: boolean}[]} */
export function flagWords(marks, at, from, to, taken) {
  const lines = marks.map(at), placed = [];
  for (let i = marks.length - 1; i >= 0; i--) {
    const mark = marks[i], x = lines[i], long = mark.text.length * CHAR_PX + ASIDE_PX;
    /** @type {[number, number][]} */
    const sides = [[x, x + long], [x - long, x]];
    const room = sides.filter(([a, b]) => a >= from && b <= to && taken.every(([c, d]) => b < c || a > d));
    const clear = ([a, b]) => lines.every((line, k) => k === i || b < line - LINE_PX || a > line + LINE_PX);
    const side = room.find(clear) || (i === lines.length - 1 ? room[0] : undefined);
    if (!side) continue;
    taken.push(side);
    placed.push({ mark, x, left: side === sides[1] });
  }
  return placed;
}
