/* What a sweep or a search shows, as the server's summary has it. */
import { given } from "../../shared/given.js";
import { lab, shownPoints } from "../state.js";

/**
 * One measured value, as the server's summary has it; `left` of a search's tries: which values are left.
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

/** What a promise says: {ttft_ms, itl_ms}. */
export function promisesOf(document) {
  if (!document.promises) return document.limits;
  return { ttft_ms: document.promises.ttft_p95_ms, itl_ms: document.promises.itl_p99_ms };
}

/** The name of what is varied. */
export const settingLabel = (setting) => (setting === "rate_per_s" ? "Rate" : given.settings.knobs[setting].label);

/** The row of a search's answer, or null. */
export function answerRow(document) {
  const { answer } = (document && document.summary) || {};
  return answer == null ? null : rowsOf(document).find((row) => row.value === answer) || null;
}

/** The sweep before the one shown, if both vary the same under the same traffic. */
export function earlierSweep() {
  const now = shownPoints();
  if (lab.mode !== "sweep" || !now) return null;
  // While one is measured, the one before it is the one shown last.
  const then = now === lab.points.sweep ? lab.earlierSweep : lab.points.sweep;
  return then && then.setting === now.setting && then.scenario === now.scenario ? then : null;
}
