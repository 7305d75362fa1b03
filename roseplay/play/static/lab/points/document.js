/* The contents of a sweep or a search, from the server's summary. */
import { given } from "../../shared/given.js";
import { lab, shownPoints } from "../state.js";

/**
 * One measured value in the server's summary; in a search, `left` is the range of values that are left after the try.
 * @typedef {object} Row
 * @property {number | null} value
 * @property {boolean} kept
 * @property {number} requests
 * @property {number} runs
 * @property {Record<string, {median: number | null, range: (number | null)[]}>} figures
 * @property {Record<string, number>} [misses]
 * @property {number[] | null} [left]
 */

/** The rows of a sweep in rising order, or of a search in the order of its tries. @returns {Row[]} */
export const rowsOf = (document) => document ? document.summary.points : [];

/** The limits of a promise: {ttft_ms, itl_ms}. */
export function promisesOf(document) {
  if (!document.promises) return document.limits;
  return { ttft_ms: document.promises.ttft_p95_ms, itl_ms: document.promises.itl_p99_ms };
}

/** The name of the varied setting. */
export const settingLabel = (setting) => (setting === "rate_per_s" ? "Rate" : given.settings.knobs[setting].label);

/** The row of a search's answer, or null. */
export function answerRow(document) {
  const { answer } = (document && document.summary) || {};
  return answer == null ? null : rowsOf(document).find((row) => row.value === answer) || null;
}

/** The sweep before the one shown, if both vary the same setting under the same traffic. */
export function earlierSweep() {
  const now = shownPoints();
  if (lab.mode !== "sweep" || !now) return null;
  // While a sweep is being measured, the previous one is the one shown last.
  const then = now === lab.points.sweep ? lab.earlierSweep : lab.points.sweep;
  return then && then.setting === now.setting && then.scenario === now.scenario ? then : null;
}
