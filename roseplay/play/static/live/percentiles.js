/* The header's percentiles of latencies: for the time that the charts show, and since the last change of a setting. */
import { format } from "../shared/format.js";
import { quantile } from "../shared/numbers.js";
import { slowedIn } from "../shared/past.js";
import { time } from "../shared/time.js";
import { begunIn, gapsIn } from "./gaps.js";
import { knobMarks } from "./knobmarks.js";

/** The figures of a cell of the header: which times, and which of their quantiles. */
const OF = {
  itl: { times: (window) => gapsIn(window).sorted, quantiles: [0.5, 0.99] },
  ttft: {
    times: (window) => Float32Array.from(begunIn(window), ({ ttft_ms: ttft }) => ttft).sort(),
    quantiles: [0.5, 0.95],
  },
};

/**
 * The percentiles of a cell in a window, as text, and their unit; dashes if there are none.
 * @param {"itl" | "ttft"} name
 * @param {{x0: number, x1: number}} window
 */
export function percentiles(name, window) {
  const { times, quantiles } = OF[name], sorted = times(window);
  return format.times(quantiles.map((q) => (sorted.length ? quantile(sorted, q) : null)));
}

/**
 * The percentiles of a cell since the last change of a setting, and which that was; "" where none was changed, or the
 * cell has no percentiles.
 */
export function sinceChange(name) {
  const mark = knobMarks().pop();
  if (!mark || !(name in OF)) return "";
  const window = { x0: mark.x, x1: time.now() };
  const { parts, unit } = percentiles(/** @type {"itl" | "ttft"} */ (name), window);
  return parts.includes("–") ? "" : `${parts.join(" / ")} ${unit}${slowedIn(window)} after ${mark.text}`;
}
