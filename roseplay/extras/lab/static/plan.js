/* The plan for the next run: a scenario or a file's traffic, the settings of both arms, and numbers. */
import { poll } from "page/shared/poll.js";
import { keep } from "page/shared/storage.js";
import { store } from "page/shared/store.js";
import { showLatest } from "./document.js";
import { ARMS, edit, lab, LAST_SCENARIO, planOf, say, scenarioNamed, shownResult, tell } from "./state.js";

const NUMBERS = ["seed", "repeats", "num_requests", "rate_per_s", "max_new_tokens"]; // in the order of the tab's boxes

/** Choose a scenario by its name: its own settings, and what this visit has measured of it.
 * @param {string} name
 * @param {{fresh?: boolean}} [how] `fresh`: with nothing that was measured */
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

/* Drop a file's requests when another scenario is chosen: they belong to the file's own. */
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
  edit("plan");
}

/** Take over from the catalogue of another engine: its scenarios are of other sizes. What was changed by hand stays. */
export function adoptCatalogue() {
  if (!lab.plan) return;
  const scenario = lab.scenario = scenarioNamed(lab.scenario.name);
  for (const arm of ARMS) {
    const { config, given } = lab.plan[arm];
    for (const name of Object.keys(config)) if (!given.has(name)) config[name] = lab.catalogue.engine[name];
  }
  if (!lab.edited && !shownResult()) {
    for (const [name, offer] of Object.entries(scenario.params || {})) lab.numbers[name] = initial(offer);
  }
  tell("plan");
  tell("numbers");
}

export function swapArms() {
  [lab.plan.A, lab.plan.B] = [lab.plan.B, lab.plan.A];
  edit("plan");
}

export function boxValues() {
  const { ttft_ms: ttft, itl_ms: itl } = lab.limits || { ttft_ms: null, itl_ms: null };
  return [...NUMBERS.map((name) => lab.numbers[name] ?? null), ttft, itl];
}

/** Take the values of the number boxes. */
export function typed(...values) {
  NUMBERS.forEach((name, i) => {
    if (!(name in lab.numbers) || lab.numbers[name] === values[i]) return;
    lab.numbers[name] = values[i];
    lab.edited = true;
  });
  tell("typed");
}

/* The numbers of a run; throws an Error that says which is missing. */
function numbers() {
  for (const [name, value] of Object.entries(lab.numbers)) {
    if (typeof value !== "number") throw new Error(`${numberName(name)} is empty: give a number.`);
  }
  return lab.numbers;
}

/* The traffic for the request: a scenario's parameters, or a file's requests. */
function trafficOrder(params) {
  if (!lab.traffic && lab.scenario.name === lab.catalogue.own.name) {
    throw new Error("Choose a file with your traffic first.");
  }
  return lab.traffic ? { params: {}, traffic: lab.traffic } : { params, length: lab.length };
}

/** The body of the request for a run; throws an Error that says which number is missing. */
export function runOrder() {
  const { mode, scenario, plan, limits } = lab, { seed, repeats, ...params } = numbers();
  const max_spread_pct = mode === "find" ? null : lab.maxSpread; // a search has its own rule
  const order = { scenario: scenario.name, seed, repeats, limits, max_spread_pct, name: null };
  if (mode !== "compare") return { ...order, ...valuesOrder(mode, params) };
  return { ...order, a: armOrder(plan.A), b: armOrder(plan.B), ...trafficOrder(params) };
}

/* The fields that only a sweep or a search has: one setting at many values, the others as the engine has them now or,
 * if a sweep is to measure both, as A and B have them.
 * @param {"sweep" | "find"} kind */
function valuesOrder(kind, params) {
  const query = lab.asked[kind], { setting, from, to, points } = query, { common } = lab.scenario;
  for (const [name, value] of Object.entries(query)) {
    const open = name === "to" && setting === "rate_per_s";
    if (name !== "setting" && name !== "both" && !open && typeof value !== "number") {
      throw new Error(`“${name}” is empty: give a number.`);
    }
  }
  const { slow_motion: _refused, ...knobs } = store.knobs, { A, B } = lab.plan;
  const now = { a: { knobs, config: (common && common.config) || {} } }, both = kind === "sweep" && query.both;
  if (poll.held && !both) {
    throw new Error("A replay is shown: go back to live first, as this uses the engine's settings.");
  }
  const arms = both ? { a: armOrder(A), b: armOrder(B) } : now;
  if (kind === "find") {
    const find = { setting, from, to, itl_p99_ms: lab.limits.itl_ms, ttft_p95_ms: lab.limits.ttft_ms };
    return { ...arms, ...trafficOrder(params), find };
  }
  if (setting !== "rate_per_s") return { ...arms, ...trafficOrder(params), sweep: { setting, from, to, points } };
  const { num_requests: _count, rate_per_s: _rate, ...rest } = params; // it has its own at each rate
  const seconds = lab.traffic ? null : query.seconds;
  const sweep = { setting, from, seconds, ...(to !== null && { to, points }) };
  return { ...arms, ...trafficOrder(rest), length: 1, sweep };
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
