/* The state of the Lab. Its views draw from here and listen to the event "lab", which says what has changed:
 *
 *   "library"   the scenarios have arrived
 *   "plan"      the plan for the next run: scenario, settings, numbers, limits
 *   "document"  another result is shown, or none
 *   "summary"   its table was computed again
 *   "limits"    the limits, at once; the table follows when the server has counted
 *   "numbers"   the boxes must show other values
 *   "typed"     something was typed into the boxes
 *   "job"       a run has progressed
 *   "message"   there is a message
 *   "wanted"    the address asks for a result
 *   "mode"      two settings are compared, one is swept, or one is searched for
 *   "asked"     another sweep or search is requested
 *   "points"    another sweep or search is shown, or it has measured more
 *   "fork"      the traffic of a recorded run from a moment on is to be compared
 *   "traffic"   whether a file's requests replace the scenario's */
import { emit, on } from "page/shared/events.js";
import { given } from "page/shared/given.js";

/** @typedef {"A" | "B"} ArmName */
/** The settings of an arm; `given`: the engine settings that a run is asked for.
 * @typedef {{knobs: Record<string, any>, config: Record<string, any>, given: Set<string>}} Arm */

/** @typedef {"compare" | "sweep" | "find"} Mode */
/** What a sweep or a search varies: from and to which value; null doubles the rate until the limits are exceeded. A
 * sweep also has `points`, and of a rate `seconds`; `both`: whether it measures A and B of the plan, or the settings
 * of the running engine.
 * @typedef {{setting: string, from: number, to: number | null}} Range
 * @typedef {Range & {points?: number, seconds?: number, both?: boolean}} Asked */

/** @type {ArmName[]} */
export const ARMS = ["A", "B"];
export const LAST_SCENARIO = "roseplay-lab-scenario";

export const lab = {
  /** The scenarios and the engine's settings. @type {any} */
  catalogue: null,
  /** @type {any} */
  scenario: null,
  /** @type {Record<ArmName, Arm> | null} */
  plan: null,
  /** @type {Record<string, number>} */
  numbers: { seed: 0, repeats: 3 },
  /** Of TTFT and ITL. @type {{ttft_ms: number, itl_ms: number} | null} */
  limits: null,
  /** @type {Mode} */
  mode: "compare",
  /** @type {Record<"sweep" | "find", Asked>} */
  asked: {
    sweep: { setting: "rate_per_s", from: 1, to: null, points: 8, seconds: 4, both: false },
    find: { setting: "prefill_max_tokens", from: 16, to: 1024 },
  },
  /** Requests of a file. @type {{name: string, text?: string, requests?: any[]} | null} */
  traffic: null,
  /** Traffic of a recorded run, its settings then, and what changed in them last, as [before, after].
   * @type {{name: string, text: string, knobs: object, changes?: Record<string, [any, any]>} | null} */
  fork: null,
  /** The sweep and the search shown. @type {Record<"sweep" | "find", any>} */
  points: { sweep: null, find: null },
  /** The sweep that was shown before. @type {any} */
  earlierSweep: null,
  length: 1, // factor for the scenario's number of requests
  /** Repeat until the spread is at most this many percent. @type {number | null} */
  maxSpread: null,
  edited: false, // whether the plan differs from that of the shown result
  /** The result shown. @type {any} */
  document: null,
  /** @type {any} */
  job: null,
  message: "",
};

/** Say what has changed. @param {string} what */
export const tell = (what) => emit("lab", what);

/** Calls `show` now, and whenever one of these has changed. @param {() => void} show @param {...string} changes */
export function showOn(show, ...changes) {
  on("lab", (what) => changes.includes(what) && show());
  show();
}

/** Put contents that scroll into a panel. Returns its subtitle. @param {HTMLElement} element */
export function fillPanel(element, ...contents) {
  const plot = element.querySelector(".rp-plot");
  plot.classList.add("rp-lab-scroll");
  plot.append(...contents);
  return element.querySelector(".rp-sub");
}

/** Tell that a visitor has changed a part of the plan, which then differs from that of the shown result. */
export function edit(what) {
  lab.edited = true;
  tell(what);
}

export const scenarioNamed = (name) =>
  [...lab.catalogue.scenarios, lab.catalogue.own].find((scenario) => scenario.name === name);

/** Whether a run is under way or about to begin. */
export const measuring = () => Boolean(lab.job && ["starting", "running"].includes(lab.job.state));

/** The sweep or search shown, or what has been measured of it so far; null if there is none, or while comparing. */
export function shownPoints() {
  if (lab.mode === "compare") return null;
  return measuring() && lab.job.kind === lab.mode ? lab.job.so_far || null : lab.points[lab.mode];
}

export const shownResult = () => (lab.mode === "compare" ? lab.document : lab.points[lab.mode]);

/** Whether the next run is simulated: then each arm or value is measured once, as repeats would be equal. */
export function simulates() {
  const configs = lab.mode === "compare" && lab.plan ? ARMS.map((arm) => lab.plan[arm].config) : [lab.catalogue.engine];
  return configs.every((config) => Boolean(config.run_as));
}

/** Show a message, such as a refusal, where the user looks; "" clears it. */
export function say(message) {
  lab.message = message instanceof Error ? message.message : message;
  tell("message");
}

const { terms } = given.tabs.lab;

/** The explanation of a term of the Lab; percentiles share that of their figure. */
export const meaning = (name) => terms[name] || terms[name.replace(/_(p\d+|max)_ms$/, "")] || "";

export const planOf = ({ common, a, b }) => ({ A: armOf(common, a), B: armOf(common, b) });

/** The settings of an arm: layers, such as shared ones and its own, over the defaults. @returns {Arm} */
export function armOf(...layers) {
  const arm = {
    knobs: { ...lab.catalogue.knobs },
    config: { ...lab.catalogue.engine },
    given: /** @type {Set<string>} */ (new Set()),
  };
  for (const { knobs = {}, config = {} } of layers.filter(Boolean)) {
    Object.assign(arm.knobs, knobs);
    Object.assign(arm.config, config);
    Object.keys(config).forEach((name) => arm.given.add(name));
  }
  return arm;
}
