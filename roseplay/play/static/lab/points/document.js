/* The sweep or the search that is shown: it becomes what would be asked for next. */
import { given } from "../../shared/given.js";
import { setMode } from "../mode.js";
import { lab, planOf, say, scenarioNamed, shownPoints, tell } from "../state.js";

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

/** Of a result: "sweep", "find" or "compare". */
export const kindOf = (document) => document.roseplay_sweep ? "sweep" : document.roseplay_find ? "find" : "compare";

/** The rows of a sweep in rising order, or of a search in the order of its tries. @returns {Row[]} */
export const rowsOf = (document) => document ? document.summary[kindOf(document) === "sweep" ? "points" : "tries"] : [];

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

/** Show a sweep or a search. @param {any} document */
export function showPoints(document) {
  const kind = /** @type {"sweep" | "find"} */ (kindOf(document)), shown = lab.points[kind];
  const { scenario: name, title, params, seed, repeats, traffic = null, setting, seconds = null } = document;
  const scenario = scenarioNamed(name);
  if (!scenario) return say("This result is of a scenario that is not known here.");
  if (kind === "sweep" && shown && shown.id !== document.id) lab.earlierSweep = shown;
  lab.points[kind] = document;
  if (name !== lab.scenario.name) Object.assign(lab, { plan: planOf(scenario), document: null });
  const limits = { ...promisesOf(document) };
  Object.assign(lab, { scenario: { ...scenario, title }, traffic, length: 1, limits, edited: false });
  lab.numbers = traffic ? { seed, repeats } : { ...params, seed, repeats };
  const values = document.asked || document.grid;
  lab.asked[kind] = { ...lab.asked[kind], setting, from: values[0], to: values[values.length - 1] };
  if (kind === "sweep") lab.asked.sweep.points = values.length;
  if (seconds !== null) lab.asked.sweep.seconds = seconds;
  setMode(kind);
  for (const what of ["plan", "document", "asked", "traffic", "numbers", "points"]) tell(what);
}
