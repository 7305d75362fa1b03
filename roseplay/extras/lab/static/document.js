/* The result that the Lab shows, of any kind: the document, the limits it is judged by, its id on the server, its
 * name and its copy in this browser. */
import { ask } from "page/shared/ask.js";
import { keep, stored } from "page/shared/storage.js";
import { putKept } from "./database.js";
import { setMode } from "./mode.js";
import { armOf, ARMS, lab, planOf, say, scenarioNamed, tell } from "./state.js";

/** @import { ArmName } from "./state.js" */

const RECOUNT_MS = 350, LAST = "roseplay-lab-result";

/** By scenario, its newest comparison of this visit. @type {Map<string, {document: any, given: any}>} */
const latest = new Map();
/** The ids of results that the server has unchanged. @type {WeakMap<object, string>} */
const onServer = new WeakMap();
let recounting = 0;

/** Show a result of any kind: its scenario, settings and numbers become the plan for the next run.
 * @param {Record<ArmName, Set<string>> | null} given the engine settings that a comparison was asked for. Not known of
 *   another's document: then the size of the pool is left to the lab, which fits it to the load. */
export function showResult(document, given = null) {
  const { kind, scenario: name, title, params, look, seed, repeats, traffic = null } = document;
  const known = scenarioNamed(name);
  if (kind === "compare") takeComparison(document, known || { name, title, params, look }, given);
  else if (known) takePoints(document, { ...known, title }, given);
  else return say("This result is from a scenario that this server does not know.");
  Object.assign(lab, { traffic, length: 1, edited: false, limits: { ...document.limits } });
  lab.numbers = traffic ? { seed, repeats } : { ...params, seed, repeats };
  setMode(kind);
  for (const what of ["traffic", "plan", "document", "asked", "numbers", "points"]) tell(what);
}

function takeComparison(document, scenario, given) {
  Object.assign(lab, { document, scenario });
  takePlan(document, given);
  latest.set(document.scenario, { document, given });
  keep(LAST, document.id);
}

function takePlan(document, given) {
  lab.plan = { A: armOf(document.arms.A), B: armOf(document.arms.B) };
  for (const arm of ARMS) lab.plan[arm].given = given ? given[arm] : settingsOf(arm, document);
}

function takePoints(document, scenario, given) {
  const { kind, setting, arms, seconds = null, doubles = false } = document,
    shown = lab.points[kind],
    values = document.asked || document.grid.filter((value) => value !== null);
  if (kind === "sweep" && shown && shown.id !== document.id) lab.earlierSweep = shown;
  if (scenario.name !== lab.scenario.name) Object.assign(lab, { plan: planOf(scenario), document: null });
  lab.scenario = scenario;
  lab.points[kind] = document;
  lab.asked[kind] = { ...lab.asked[kind], setting, from: values[0], to: doubles ? null : values[values.length - 1] };
  if (kind === "sweep") {
    Object.assign(lab.asked.sweep, { both: "B" in arms, ...(!doubles && { points: values.length }) });
  }
  if (arms.B) takePlan(document, given);
  if (seconds !== null) lab.asked.sweep.seconds = seconds;
}

/** Show the result of a scenario that this visit has measured or opened last. Returns whether there is one. */
export function showLatest(scenario) {
  const known = latest.get(scenario);
  if (known) showResult(known.document, known.given);
  return Boolean(known);
}

/* The settings to give for repeating an arm: those that differ from the other arm or from this server's engine. */
function settingsOf(arm, { arms }) {
  const { common, a, b } = lab.scenario, config = arms[arm].config, layers = [common, a, b];
  const names = Object.keys(config).filter((name) => {
    if (arms.A.config[name] !== arms.B.config[name]) return true;
    if (layers.some((layer) => layer && layer.config && name in layer.config)) return true;
    return name !== "num_blocks" && config[name] !== lab.catalogue.engine[name];
  });
  return new Set(names);
}

/** Send a result to the server if it may not have it. Returns its id there. */
export async function idOnServer(document) {
  const known = onServer.get(document);
  if (known) return known;
  const { id } = await ask("/lab/open", { body: document });
  onServer.set(document, id);
  return id;
}

export async function resultOnServer(id) {
  const document = await ask(`/lab/result/${encodeURIComponent(id)}`);
  onServer.set(document, id);
  return document;
}

/** Note that a result has another name or other limits, so that the server's copy is out of date. */
export const documentChanged = (document) => onServer.delete(document);

export function forgetDocument(id) {
  for (const [name, { document }] of latest) if (document.id === id) latest.delete(name);
  if (lastShown() === id) keep(LAST, null);
}

// ---- in this browser --------------------------------------------------------------------------------------
/** The id of the result that was shown last, or null. */
export const lastShown = () => stored(LAST);

/** Keep a result in this browser; if that is not possible, show the reason. */
export async function keepDocument(document) {
  try {
    await putKept(document);
  } catch (error) {
    say(error);
  }
}

export async function renameDocument(document, name) {
  if (!document || (document.name || "") === name) return;
  document.name = name || null;
  documentChanged(document);
  await keepDocument(document);
}

// ---- limits -----------------------------------------------------------------------------------------------
/** Set the limits: counts made here change at once, the table once the server has counted again. */
export function setLimits(ttft, itl) {
  if (!(ttft > 0 && itl > 0)) return;
  lab.limits = { ttft_ms: ttft, itl_ms: itl };
  if (lab.mode !== "compare") lab.edited = true;
  tell("limits");
  clearTimeout(recounting);
  if (lab.mode === "compare" && lab.document) recounting = setTimeout(recount, RECOUNT_MS);
}

async function recount() {
  const { document, limits } = lab;
  try {
    const id = onServer.get(document);
    const summary = await ask("/lab/summary", { body: id ? { id, limits } : { document, limits } });
    if (lab.document !== document || lab.limits !== limits) return; // overtaken by another one
    Object.assign(document, { limits, summary });
    documentChanged(document);
    say("");
    tell("summary");
  } catch (error) {
    say(error);
  }
}

/** The number of an arm's requests, and of those within the limits: {kept, all}. */
export function keptOf(arm) {
  const all = lab.document.runs.filter((run) => run.arm === arm).flatMap((run) => run.requests);
  return { kept: all.filter(withinLimits).length, all: all.length };
}

/** Whether a request has ended by itself and is within both limits. */
export function withinLimits({ reason, ttft_ms: ttft, itl_p99_ms: itl }) {
  const { limits } = lab, ended = reason === "stop" || reason === "length";
  return ended && ttft !== null && ttft <= limits.ttft_ms && (itl === null || itl <= limits.itl_ms);
}

/** The run of an arm with the median duration. */
export function typicalRun(arm) {
  const runs = lab.document.runs.filter((run) => run.arm === arm).sort((a, b) => a.seconds - b.seconds);
  return runs[Math.floor((runs.length - 1) / 2)];
}
