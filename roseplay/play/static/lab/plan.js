/* What a run would be: scenario or traffic of a file, settings of both arms, numbers. */
import { keep } from "../shared/storage.js";
import { showLatest } from "./document.js";
import { lab, LAST_SCENARIO, planOf, say, scenarioNamed, tell } from "./state.js";

const NUMBERS = ["seed", "repeats", "num_requests", "rate_per_s", "max_new_tokens"]; // in the order of the tab's boxes

/**
 * Choose a scenario by its name: its own settings, and what this visit has measured of it.
 * @param {string} name
 * @param {{fresh?: boolean}} [how] `fresh`: with nothing that was measured
 */
export function chooseScenario(name, { fresh = false } = {}) {
  const scenario = scenarioNamed(name);
  if (!scenario) return;
  keep(LAST_SCENARIO, name);
  say("");
  leaveTraffic(name);
  if (!fresh && lab.mode === "compare" && showLatest(name)) return;
  const limits = { ...(scenario.limits || lab.catalogue.limits) };
  Object.assign(lab, { scenario, document: null, edited: false, limits });
  lab.plan = planOf(scenario);
  const offered = Object.entries(scenario.params || {}).map(([key, offer]) => [key, initial(offer)]);
  lab.numbers = { ...Object.fromEntries(offered), seed: lab.numbers.seed, repeats: lab.numbers.repeats };
  if (lab.mode !== "compare") leavePoints(name);
  tell("plan");
  tell("document");
}

/* A file's requests are those of one scenario: its own. */
function leaveTraffic(name) {
  if (!lab.traffic || name === lab.catalogue.own.name) return;
  lab.traffic = null;
  tell("traffic");
}

/* A sweep or a search of another scenario is no longer shown. */
function leavePoints(name) {
  for (const kind of /** @type {const} */ (["sweep", "find"])) {
    if (lab.points[kind] && lab.points[kind].scenario !== name) lab.points[kind] = null;
  }
  tell("points");
}

const initial = (offer) => (offer !== null && typeof offer === "object" ? offer.default : offer);

/** Set one value of one arm; `group` is "knobs" or "config". */
export function setValue(arm, group, name, value) {
  lab.plan[arm][group][name] = value;
  if (group === "config") lab.plan[arm].given.add(name);
  lab.edited = true;
  tell("plan");
}

export function swapArms() {
  [lab.plan.A, lab.plan.B] = [lab.plan.B, lab.plan.A];
  lab.edited = true;
  tell("plan");
}

/** What the boxes for numbers are to show. */
export function boxValues() {
  const { ttft_ms: ttft, itl_ms: itl } = lab.limits || { ttft_ms: null, itl_ms: null };
  return [...NUMBERS.map((name) => lab.numbers[name] ?? null), ttft, itl];
}

/** Take what the boxes for numbers hold. */
export function typed(...values) {
  NUMBERS.forEach((name, i) => {
    if (!(name in lab.numbers) || lab.numbers[name] === values[i]) return;
    lab.numbers[name] = values[i];
    lab.edited = true;
  });
  tell("typed");
}

/** The numbers of a run; throws an Error that says which is missing. */
export function numbers() {
  for (const [name, value] of Object.entries(lab.numbers)) {
    if (typeof value !== "number") throw new Error(`${numberName(name)} is empty: give a number.`);
  }
  return lab.numbers;
}

/** What is sent: a scenario's parameters, or the requests of a file. */
export function trafficOrder(params) {
  if (!lab.traffic && lab.scenario.name === lab.catalogue.own.name) {
    throw new Error("Choose a file with your traffic first.");
  }
  return lab.traffic ? { params: {}, traffic: lab.traffic } : { params, length: lab.length };
}

/** What a run of A and B is asked for; throws an Error that says which number is missing. */
export function runOrder() {
  const { seed, repeats, ...params } = numbers(), { scenario, plan, limits } = lab;
  const arms = { a: armOrder(plan.A), b: armOrder(plan.B) };
  const rest = { limits, max_spread_pct: lab.maxSpread, name: null };
  return { scenario: scenario.name, ...arms, seed, repeats, ...trafficOrder(params), ...rest };
}

/** @param {any} arm */
function armOrder({ knobs: { slow_motion: _refused, ...knobs }, config, given }) {
  return { knobs, config: Object.fromEntries([...given].map((name) => [name, config[name]])) };
}

const WORDS = {
  seed: "Seed",
  repeats: "Repeats",
  num_requests: "Requests",
  rate_per_s: "Rate",
  max_new_tokens: "Answer",
};
const numberName = (name) => WORDS[name] || name.replace(/_/g, " ");
