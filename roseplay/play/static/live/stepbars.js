/* Two-part bars for charts in which each step is as wide as it lasted, and the limits that a setting imposes on them.
 * Bars are drawn as the areas under two lines: thousands of separate ones would take too long. */
import { format } from "../shared/format.js";
import { store } from "../shared/store.js";
import { time } from "../shared/time.js";
import { stepsIn } from "./span.js";
import { lineLabel, lineTrace } from "../shared/chart/shapes.js";

/** @import { ChartFrame } from "./chart.js" */
/** @typedef {{x0: number, x1: number, low: number, high: number}} Bar from x0 to x1, in seconds */

const LEAST_PX = 0.8; // steps narrower than this share a bar: the fullest of them
const PASSED_MS = 1000;

/** @param {Bar} bar */
export const heightOf = ({ low, high }) => low + high;

/** Steps of the window, oldest first; of narrow ones, only the highest. `read` returns the two parts of a step by slot.
 * @param {ChartFrame} frame
 * @param {(slot: number) => {low: number, high: number}} read
 * @returns {Bar[]} */
export function collectBars({ window, width }, read) {
  const { steps } = store, bars = [];
  const least = (LEAST_PX * (window.x1 - window.x0)) / width / 1000;
  let open = null;
  for (const slot of stepsIn(window)) {
    const x0 = Math.max(window.x0, time.x(steps.t0[slot])) / 1000, x1 = time.x(steps.t1[slot]) / 1000;
    const bar = { x0, x1, ...read(slot) };
    if (open && open.x1 - bar.x0 < least && open.x0 - bar.x1 < least) {
      if (heightOf(bar) > heightOf(open)) Object.assign(open, { low: bar.low, high: bar.high });
      open.x0 = bar.x0;
    } else bars.push(open = bar);
  }
  return bars.reverse();
}

/** The outline of bars; neighbours of no distance share an edge, others come down to zero between. */
export function outline(bars, height, gapPx, { window, width }) {
  const pixel = (window.x1 - window.x0) / width / 1000, x = [], y = [];
  const put = (at, tokens) => {
    x.push(at);
    y.push(tokens);
  };
  bars.forEach((bar, i) => {
    const next = bars[i + 1], v = height(bar);
    const gap = gapPx && bar.x1 - bar.x0 > 2 * pixel ? gapPx * pixel : 0;
    const end = Math.max(bar.x0 + pixel * 0.7, bar.x1 - gap);
    const joined = !gap && next && next.x0 - end < 0.6 * pixel;
    if (!i || y[y.length - 1] === 0) put(bar.x0, 0);
    put(bar.x0, v);
    put(joined ? next.x0 : end, v);
    if (!joined) put(end, 0);
  });
  return [x, y];
}

// ---- limits -----------------------------------------------------------------------------------------------
/** A knob's value over the window, from its value now backwards through its changes: {now, xs (ms), ys}; null is
 * unlimited. */
export function limit(name, { x0, x1 }) {
  const xs = [x1], ys = [], now = store.knobs[name] ?? null;
  let value = now;
  for (let i = store.marks.length - 1; i >= 0; i--) {
    const mark = store.marks[i], change = mark.changes[name], x = change && time.x(mark.t);
    if (!change) continue;
    if (x < x0) break;
    if (x < x1) {
      ys.push(change[1], change[1]);
      xs.push(x, x);
    }
    value = change[0];
  }
  ys.push(value, value);
  xs.push(x0);
  return { now, xs: xs.reverse(), ys: ys.reverse() };
}

/** The values that lasted for a while: those that a slider only passed through should not extend the axis. */
export function lasting({ now, xs, ys }) {
  const long = ys.filter((_, k) => xs[k - (k % 2) + 1] - xs[k - (k % 2)] > PASSED_MS);
  return now === null ? long : [...long, ys[ys.length - 1]];
}

/** The limit as a dashed line. */
export const limitLine = ({ xs, ys }, T) =>
  lineTrace(xs.map((x) => x / 1000), ys, { color: T.rose, width: 1.25, dash: [4, 3] });

/** Its name and value at the right of the plot. */
export function limitLabel(layout, { now, ys }, name, { T, height }) {
  const max = layout.yaxis.range[1], at = ys[ys.length - 1], beyond = now === null || at > max;
  const words = now === null ? "∞" : beyond ? `${format.count(now)} ↑` : format.count(now);
  const y = beyond ? max : at;
  const shift = Math.min(0, (1 - y / max) * height - 6) || 0;
  layout.annotations.push(lineLabel(T, y, name, words, T.rose, beyond ? -8 : shift));
}
