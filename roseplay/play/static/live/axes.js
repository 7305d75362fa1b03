/* The time axis that charts and timeline share, with its marks: changed settings, and idle times left out. */
import { linear } from "../shared/chart/scale.js";
import { format } from "../shared/format.js";
import { niceAxis } from "../shared/numbers.js";
import { CHAR_PX } from "../shared/pen.js";
import { time } from "../shared/time.js";
import { flagWords, knobMarks } from "./knobmarks.js";
import { ABOVE, annotation, beside, polygon, verticalLine } from "../shared/chart/shapes.js";

const minus = (text) => text.replace("-", "−");
const FLAG = [[-3.5, -13], [3.5, -13], [3.5, -9], [0, -5], [-3.5, -9]]; // px
const LIVE_STEPS = [1, 2, 3, 5, 10, 15, 20]; // seconds
const WORTH_SAYING_MS = 2000, CALM_MS = 1500;

const nowText = () => (time.stopped() ? "lost" : time.idle() ? "idle" : "now");

/** The labels of a time axis: [{x: ms, text}], counted from the window's now. `least`: least px between two labels. */
export function timeTicks({ x0, x1, now, live }, width, least = 80) {
  const span = (x1 - x0) / 1000, most = Math.max(2, width / least);
  const step = live ? LIVE_STEPS.find((s) => span / s <= most) || 30 : niceAxis(span, Math.floor(most)).step;
  const digits = Math.max(0, Math.min(3, Math.ceil(-Math.log10(step) + 0.01)));
  const ticks = [];
  for (let n = Math.ceil((x0 - now) / 1000 / step - 1e-6); n * step <= (x1 - now) / 1000 + 1e-6; n++) {
    const unit = ticks.length ? "" : " s", ago = minus((n * step).toFixed(live ? 0 : digits)) + unit;
    ticks.push({ x: now + n * step * 1000, text: n === 0 ? nowText() : ago });
  }
  return ticks;
}

/** The time axis of a chart. */
export function timeAxis(window, width) {
  const ticks = timeTicks(window, width);
  const tickvals = ticks.map(({ x }) => x / 1000), ticktext = ticks.map(({ text }) => text);
  return { range: [window.x0 / 1000, window.x1 / 1000], tickmode: "array", tickvals, ticktext };
}

/** A time in seconds, moved to where a line one pixel wide is sharp: between pixel borders. */
export function onHalfPixel(ms, { x0, x1 }, width) {
  const perPixel = (x1 - x0) / width;
  return (x0 + (Math.round((ms - x0) / perPixel - 0.5) + 0.5) * perPixel) / 1000;
}

/** The line at "now". */
export const nowLine = (T) => ({ ...verticalLine("now", 1, T.line2, { shift: 0.5, below: true }), xref: "paper" });

/** Add a rose line where settings changed; `flags`: with a flag and words above the plot.
 * Returns the stretches that those take: [from, to] in px. */
export function addKnobs(layout, frame, flags) {
  const { window, width, seconds, T } = frame, marks = knobMarks(window.x0, window.x1);
  const place = linear(window.x0, window.x1, 0, width), px = (mark) => place(mark.x);
  /** @type {[number, number][]} */
  const taken = [];
  for (const mark of marks) layout.shapes.push(verticalLine("knob", seconds(mark.x), T.rose));
  if (!flags) return taken;
  for (const mark of marks) layout.shapes.push(polygon("knob flag", FLAG, seconds(mark.x), T.rose));
  for (const { mark, left } of flagWords(marks, px, 0, width, taken)) {
    const words = annotation(T, "knob", mark.text, T.rose, true);
    layout.annotations.push({ ...words, ...beside(seconds(mark.x), left, 6), ...ABOVE });
  }
  for (const mark of marks) taken.push([px(mark) - 5, px(mark) + 5]);
  return taken;
}

/** Add a dotted line where idle time was left out, with words above the plot outside the stretches in `taken`. */
export function addCuts(layout, { window, width, seconds, T }, taken) {
  const place = linear(window.x0, window.x1, 0, width);
  for (const cut of time.cuts.slice().reverse()) {
    const at = cut.from - cut.before, length = cut.to - cut.from;
    if (at <= window.x0 || at >= window.x1) continue;
    layout.shapes.push(verticalLine("idle", seconds(at), T.line2, { dash: [2, 3], below: true }));
    const words = `idle ${format.duration(length)}`, half = (words.length * CHAR_PX) / 2 + 4, px = place(at);
    if (!taken || length < WORTH_SAYING_MS || taken.some(([from, to]) => px + half > from && px - half < to)) continue;
    taken.push([px - half, px + half]);
    layout.annotations.push({ ...annotation(T, "idle", words, T.ink3), x: seconds(at), xanchor: "center", ...ABOVE });
  }
}

/** A y axis from 0 with so many parts, for the value that it has to cover. It grows at once, but shrinks only after it
 * could have been smaller for CALM_MS, or if it is not `live`. */
export function calmAxis(parts) {
  let size = { max: 0, step: 0 }, since = 0;
  return (most, live) => {
    const wanted = niceAxis(most, parts);
    if (wanted.max >= size.max || !live || performance.now() - since >= CALM_MS) {
      [size, since] = [wanted, performance.now()];
    }
    return { range: [0, size.max], tickmode: "linear", tick0: 0, dtick: size.step };
  };
}
