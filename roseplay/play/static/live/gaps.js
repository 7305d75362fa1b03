/* The latencies in a stretch of time, and their percentiles, for the header's figures and for the charts, which must
 * agree. */
import { slowedIn } from "../shared/past.js";
import { store } from "../shared/store.js";
import { time } from "../shared/time.js";
import { format } from "../shared/format.js";
import { quantile } from "../shared/numbers.js";
import { knobMarks } from "./knobmarks.js";

const seen = new Float32Array(store.tokens.capacity);

/** The gaps of a window, sorted, in ms, and their slow motion (see `slowedIn`); and its runs of tokens, one a step (its
 * tokens stand together in the ring), newest first: the ring rows `from` and `to`, the view time of its end and how
 * long the step took. */
export function gapsIn({ x0, x1 }) {
  const { tokens, steps, stepRow } = store, runs = [];
  let n = 0;
  for (let to = tokens.end - 1, from; to >= tokens.first; to = from - 1) {
    const step = tokens.step_id[to & tokens.mask];
    from = to;
    while (from > tokens.first && tokens.step_id[(from - 1) & tokens.mask] === step) from--;
    const end = time.x(tokens.t[to & tokens.mask]);
    if (end < x0) break;
    if (end > x1) continue;
    const row = stepRow(step);
    runs.push({ from, to, step, end, took: row < 0 ? 0 : steps.t1[row & steps.mask] - steps.t0[row & steps.mask] });
    for (let i = from; i <= to; i++) {
      const itl = tokens.itl_ms[i & tokens.mask];
      if (itl > 0) seen[n++] = itl; // 0: it came with the one before
    }
  }
  return { runs, sorted: seen.slice(0, n).sort(), slow: slowedIn({ x0, x1 }) };
}

/** The requests whose first token came in a window. @param {{x0: number, x1: number}} window */
export function begunIn({ x0, x1 }) {
  const begun = ({ first, ttft_ms: ttft }) =>
    first !== null && ttft !== null && time.x(first) >= x0 && time.x(first) <= x1;
  return [...store.requests.values()].filter(begun);
}

/** The figures of a cell of the header: which times, and which of their quantiles. */
const OF = {
  itl: { times: (window) => gapsIn(window).sorted, quantiles: [0.5, 0.99] },
  ttft: { times: (window) => Float32Array.from(begunIn(window), (one) => one.ttft_ms).sort(), quantiles: [0.5, 0.95] },
};

/** The percentiles of a cell in a window, as text, and their unit; dashes if there are none.
 * @param {"itl" | "ttft"} name */
export function percentiles(name, window) {
  const { times, quantiles } = OF[name], sorted = times(window);
  return format.times(quantiles.map((q) => (sorted.length ? quantile(sorted, q) : null)));
}

/** The percentiles of a cell since the last change of a setting, and which that was; "" where none was changed, or the
 * cell has no percentiles. */
export function sinceChange(name) {
  const mark = knobMarks().pop();
  if (!mark || !(name in OF)) return "";
  const window = { x0: mark.x, x1: time.now() };
  const { parts, unit } = percentiles(/** @type {"itl" | "ttft"} */ (name), window);
  return parts.includes("–") ? "" : `${parts.join(" / ")} ${unit}${slowedIn(window)} after ${mark.text}`;
}
