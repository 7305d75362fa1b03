/* The traffic of a recorded run from a moment on, as a file of requests: what was running then goes on, and what came
 * later arrives at its times. As a recording holds lengths, not prompts, so does the file. */
import { places } from "../shared/reduce.js";

/** @import { Recording } from "./recording.js" */

/** `before`: tokens of its answer at the moment; `ended`: by then; `fields`: its tenant and priority, as in such a
 * file.
 * @typedef {{at: number, prompt: number, before: number, tokens: number, ended: boolean, fields: object}} Known */

/** Returns the requests as lines of JSON, or "" if there are none.
 * @param {Recording} recording
 * @param {number} ms the moment, in ms from the recording's start */
export function trafficFrom(recording, ms) {
  const moment = recording.time(ms), known = knownBy(recording, moment), lines = [];
  for (const { at, prompt, before, tokens, ended, fields } of known.values()) {
    if (ended || !prompt || tokens <= before) continue;
    const arrival_s = Math.max(0, Math.round(at - moment) / 1000);
    lines.push({ arrival_s, prompt_tokens: prompt + before, answer_tokens: tokens - before, ...fields });
  }
  return lines.sort((a, b) => a.arrival_s - b.arrival_s).map((line) => `${JSON.stringify(line)}\n`).join("");
}

/** @param {Recording} recording @param {number} moment @returns {Map<number, Known>} */
function knownBy(recording, moment) {
  const known = new Map(), { request_id: ofToken, t: timeOfToken } = places(recording.columns.tokens);
  const names = tenantNames(recording);
  const add = (rid, at, { prompt_tokens: prompt = 0, tokens = 0, tenant = null, priority = 0 }) => {
    const name = names.get(rid) ?? (tenant === null ? null : `tenant ${tenant}`);
    const fields = { ...(name === null ? {} : { tenant: name }), ...(priority ? { priority } : {}) };
    known.set(rid, { at, prompt, before: tokens, tokens, ended: false, fields });
  };
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

/* The names of tenants by request, where they were recorded. Elsewhere there are only their numbers. */
function tenantNames(recording) {
  const names = new Map(recording.header.snapshot.tenants || []);
  for (let i = 0; i < recording.count; i++) {
    for (const [rid, name] of recording.frame(i).tenants || []) names.set(rid, name);
  }
  return names;
}
