/* Which step the stage shows: the one pointed at or ringed by a demo, otherwise the newest slow one; at rest and while
 * the charts stand still, the slowest in them; before anything has run, those of the bundled recording. */
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { given } from "../shared/given.js";
import { pointing } from "../shared/pointing.js";
import { poll } from "../shared/poll.js";
import { store } from "../shared/store.js";
import { time } from "../shared/time.js";
import { demos } from "../live/demos.js";
import { knobMarks } from "../live/knobmarks.js";
import { ringedSpan } from "../live/rings.js";
import { stepsIn } from "../live/span.js";
import { view } from "../live/view.js";
import { Recorded } from "./recorded.js";
import { Pace, promptTokens, sceneOf } from "./scene.js";

/** @import { Scene } from "./scene.js" */

export const RECORDED = "recorded";
export const SLOWEST = "slowest";
const LEAST_TOKENS = 64, PEAK_MS = 15000;

/** `knobs`: the settings beside it; `most`: the most tokens of prompts in a step lately. */
export const shown = {
  /** @type {Scene | null} */
  scene: null,
  /** @type {Record<string, any>} */
  knobs: {},
  kind: "",
  most: LEAST_TOKENS,
};
let pace = new Pace(), recorded = /** @type {Recorded | null} */ (null), peaked = 0;

on("reset", () => {
  pace = new Pace();
  Object.assign(shown, { scene: null, kind: "", most: LEAST_TOKENS });
});

/** Choose what to show from now on. Returns whether it is another scene. */
export function choose() {
  const before = shown.scene, now = performance.now(), { steps } = store;
  shown.knobs = store.knobs;
  const step = pointing.step ?? demos.caption?.rings.find((ring) => ring.step !== undefined)?.step ?? null;
  const pointed = step === null ? -1 : store.stepRow(step);
  if (pointed >= 0) show(pointed & steps.mask, "");
  else if (!steps.end) playRecorded(now);
  else if (time.idle() || view.zoom) show(slowestNow(), SLOWEST);
  else show(pace.next(newest, now)?.slot, "");
  const tokens = shown.scene ? promptTokens(shown.scene) : 0;
  if (tokens >= shown.most || now - peaked > PEAK_MS) [shown.most, peaked] = [Math.max(LEAST_TOKENS, tokens), now];
  return shown.scene !== before;
}

function show(slot, kind) {
  if (slot === undefined) return;
  const same = store.steps.step_id[slot] === shown.scene?.step && shown.kind !== RECORDED;
  Object.assign(shown, { kind, scene: same ? shown.scene : sceneOf(slot) });
}

/* The steps that the page has got since the last one was shown. */
function newest() {
  const { step_id, t0, t1, entry_count, mask, first, end } = store.steps, ended = [];
  for (let i = end - 1; i >= first && step_id[i & mask] > pace.last; i--) {
    const slot = i & mask;
    if (entry_count[slot] > 0) ended.push({ slot, step: step_id[slot], took: t1[slot] - t0[slot] });
  }
  return ended;
}

/* Of the rows that a demo rings, or under the latest settings if there was any. */
function slowestNow() {
  const window = view.window(time.now()), changed = knobMarks(window.x0, window.x1).pop()?.x ?? window.x0;
  const [x0, x1] = ringedSpan() ?? [changed, window.x1];
  return slowest({ x0, x1 }) ?? slowest(window);
}

/* The slot of the slowest step in a stretch of view time; undefined if there is none. */
function slowest(window) {
  const { t0, t1, entry_count } = store.steps, lasted = (slot) => (entry_count[slot] ? t1[slot] - t0[slot] : -1);
  const slower = (best, slot) => (lasted(best) >= lasted(slot) ? best : slot), slots = stepsIn(window);
  return slots.length ? slots.reduce(slower) : undefined;
}

/* Until somebody sends a request or changes a knob. */
function playRecorded(now) {
  const untouched = !poll.held && !store.open.size && !store.marks.length && !store.absent.knobs;
  const plays = given.recordedDemo && untouched;
  const moment = plays ? (recorded ??= new Recorded()).at(now) : null;
  Object.assign(shown, { scene: moment?.scene ?? null, kind: moment ? RECORDED : "" });
  if (moment) Object.assign(shown, { knobs: moment.knobs, most: recorded.most });
}

/** What the step meant for those who read. */
export function caption() {
  const { scene } = shown;
  if (!scene) return "";
  const prompt = promptTokens(scene), answers = scene.parts.filter(({ decode }) => decode > 0).length;
  const lasted = format.amount(scene.t1 - scene.t0);
  if (!answers) return prompt ? `One step computed ${format.many(prompt, "prompt token")}.` : "";
  if (!prompt) return `${answers > 1 ? "Each of " : ""}${format.many(answers, "answer")} got a token after ${lasted}.`;
  const had = `${answers === 1 ? "its" : "their"} step had ${format.many(prompt, "prompt token")}`;
  return `${format.many(answers, "answer")} waited ${lasted}: ${had}.`;
}
