/* The bundled recording as scenes, one after the other without end: what the stage plays until something runs here. */
import { ask } from "../shared/ask.js";
import { blocks } from "../shared/blocks.js";
import { places } from "../shared/reduce.js";
import { Recording } from "../replay/recording.js";
import { Pace, promptTokens } from "./scene.js";

/** @import { Scene, Ticket, Who } from "./scene.js" */
/** @typedef {{scene: Scene, at: number, step: number, took: number, knobs: Record<string, any>}} Moment */

const BUSY_TOKENS = 32, AROUND_MS = 1200; // steps of so many tokens of prompts are played, and what is around them

/** The moments of the recording, each at its position in ms. @returns {Promise<Moment[]>} */
async function read() {
  const recording = new Recording(await ask("/demo.jsonl", { text: true }), "demo.jsonl"), moments = [];
  const steps = places(recording.columns.steps), entries = places(recording.columns.entries);
  let knobs = recording.header.knobs;
  /** @type {Map<number, Ticket>} */
  const waiting = new Map();
  /** @type {Map<number, Who>} */
  const known = new Map();
  const who = (rid) => known.get(rid) ?? { rid, lane: null };
  for (let i = 0; i < recording.count; i++) {
    const frame = recording.frame(i), at = recording.due[i];
    for (const [rid, event, , about] of frame.requests) {
      const { lane = null, prompt_tokens: tokens = 0 } = about;
      if (event === "submitted") known.set(rid, { rid, lane });
      if (event === "submitted") waiting.set(rid, { ...who(rid), tokens });
      else waiting.delete(rid);
    }
    for (const [, , changes] of frame.knobs) {
      knobs = { ...knobs, ...Object.fromEntries(Object.entries(changes).map(([name, [, value]]) => [name, value])) };
    }
    for (const row of frame.steps) {
      const of = (name) => row[steps[name]], step = of("step_id"), t0 = of("t0"), t1 = of("t1");
      const parts = of("entries").map((entry) => ({
        ...who(entry[entries.request_id]),
        prompt: entry[entries.prompt_tokens],
        decode: entry[entries.decode_tokens],
      }));
      const kinds = { shared: blocks.SHARED, active: blocks.ACTIVE, cached: blocks.CACHED, free: blocks.FREE };
      const run = ([name, kind]) => ({ kind, rid: -1, count: of(`blocks_${name}`), block: 0 });
      const kv = Object.entries(kinds).map(run);
      const scene = { step, t0, t1, parts, waiting: [...waiting.values()], kv };
      moments.push({ scene, at, step, took: t1 - t0, knobs });
    }
  }
  return moments;
}

/* Those around busy steps, moved together. */
function busy(moments) {
  const times = moments.filter(({ scene }) => promptTokens(scene) >= BUSY_TOKENS).map(({ at }) => at), kept = [];
  let at = 0, last = moments[0].at;
  for (const moment of moments.filter((one) => times.some((time) => Math.abs(time - one.at) < AROUND_MS))) {
    at += Math.min(moment.at - last, AROUND_MS);
    last = moment.at;
    kept.push({ ...moment, at });
  }
  return { moments: kept, length: at + AROUND_MS, most: Math.max(0, ...kept.map(({ scene }) => promptTokens(scene))) };
}

/** Plays the bundled recording once it has been read. */
export class Recorded {
  constructor() {
    /** @type {Moment[]} */
    this.moments = [];
    this.length = Infinity;
    this.most = 0; // tokens of prompts in one step
    this.began = 0;
    this.pace = new Pace();
    /** @type {Moment | null} */
    this.shown = null;
    /** @type {Promise<void> | null} */
    this.reading = null;
  }

  /** What to show at a time of the browser; null while it is being read. @param {number} now in ms */
  at(now) {
    this.reading ??= read().then((all) => void Object.assign(this, busy(all), { began: now }), () => undefined);
    if (!this.moments.length) return null;
    if (now - this.began > this.length) Object.assign(this, { began: now, pace: new Pace() });
    this.shown = this.pace.next(() => this.moments.filter(({ at }) => at <= now - this.began), now) ?? this.shown;
    return this.shown;
  }
}
