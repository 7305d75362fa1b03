/* The traffic of a recorded run from a moment on, as a file of requests: what was running then goes on, and what came
 * later arrives at its times. As a recording holds lengths, not prompts, so does the file. */
import { places } from "../shared/reduce.js";

/** @import { Recording } from "./recording.js" */

/**
 * `before`: tokens of its answer at the moment; `ended`: by then.
 * @typedef {{at: number, prompt: number, before: number, tokens: number, ended: boolean}} Known
 */

/**
 * Returns the requests as lines of JSON, or "" if there are none.
 * @param {Recording} recording
 * @param {number} ms the moment, in ms from the recording's start
 */
export function trafficFrom(recording, ms) {
  const moment = recording.time(ms), known = knownBy(recording, moment), lines = [];
  for (const { at, prompt, before, tokens, ended } of known.values()) {
    if (ended || !prompt || tokens <= before) continue;
    const arrival_s = Math.max(0, Math.round(at - moment) / 1000);
    lines.push({ arrival_s, prompt_tokens: prompt + before, answer_tokens: tokens - before });
  }
  return lines.sort((a, b) => a.arrival_s - b.arrival_s).map((line) => `${JSON.stringify(line)}\n`).join("");
}

/**
 * @param {Recording} recording
 * @param {number} moment
 * @returns {Map<number, Known>}
 */
function knownBy(recording, moment) {
  const known = new Map(), { request_id: ofToken, t: timeOfToken } = places(recording.columns.tokens);
  const add = (rid, at, { prompt_tokens: prompt = 0, tokens = 0 }) =>
    known.set(rid, { at, prompt, before: tokens, tokens, ended: false });
  for (const [rid, about] of recording.header.snapshot.requests) add(rid, about.submitted ?? 0, about);
  for (let i = 0; i < recording.count; i++) {
    const frame = recording.frame(i);
    for (const [rid, event, t, about = {}] of frame.requests) {
      if (event === "submitted") add(rid, about.arrived ?? t, about);
      if (event === "finished" && t <= moment && known.has(rid)) known.get(rid).ended = true;
    }
    for (const token of frame.tokens) {
      const request = known.get(token[ofToken]);
      if (!request) continue;
      request.tokens++;
      if (token[timeOfToken] <= moment) request.before++;
    }
  }
  return known;
}
