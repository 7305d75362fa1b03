/* The lanes' news in a replay, made from frames in the format of the server's `own.lanes`. A lane shows its requests
 * one after another. Requests whose texts are not in the recording have no lane. */
import { emit } from "../shared/events.js";
import { given } from "../shared/given.js";
import { median } from "../shared/numbers.js";
import { places } from "../shared/reduce.js";
import { store } from "../shared/store.js";
import { clock } from "../shared/time.js";

const RATE_TOKENS = 32, MOST_LANES = 8;
/** @import { Frame } from "../shared/records.js" */
/** @import { LaneNews } from "../shared/types.js" */

const turns = new Map(); // rid -> turn
const lanes = new Map(); // lane -> [turn]
const sent = new Map(); // lane -> what its view has of it
let column = places(given.columns.tokens); // of a token's row

/** Clear the lanes. */
export function clearLanes() {
  for (const map of [turns, lanes, sent]) map.clear();
  const empty = { rid: null, title: "", have: "", order: [], turns: [], waiting_ms: null };
  const news = { lanes: Array.from({ length: MOST_LANES }, (_, i) => ({ lane: i + 1, ...empty })) };
  emit("own", news, { own: news });
}

/** Clear the lanes, and add the unfinished answers of a snapshot. */
export function beginLanes(snapshot) {
  clearLanes();
  column = places(snapshot.columns.tokens);
  const open = new Map(snapshot.requests || []);
  for (const [rid, title, text] of snapshot.words || []) {
    const about = open.get(rid);
    if (!about || !ask(rid, title, about) || !about.tokens) continue;
    // Its text so far counts as one token here.
    Object.assign(turns.get(rid), { text, widths: [text.length], times: [snapshot.t], first: about.tokens - 1 });
  }
}

/* Add a request's turn to its lane; returns whether it has one. */
function ask(rid, title, about) {
  const lane = about?.lane, thinking = about?.thinking;
  if (!lane) return false;
  // `widths`, `times`: of each token from `first` on, the length of its text and when it came; `late`: as in news
  const turn = { rid, title, thinking, text: "", widths: [], times: [], late: [], first: 0 };
  turns.set(rid, turn);
  if (!lanes.has(lane)) lanes.set(lane, []);
  lanes.get(lane).push(turn);
  sent.delete(lane);
  return true;
}

// ---- taking frames ----------------------------------------------------------------------------------------
function take(frame) {
  const submitted = frame.requests.filter((event) => event[1] === "submitted");
  const details = new Map(submitted.map(([rid, , , about]) => [rid, about]));
  for (const [rid, title] of frame.titles || []) ask(rid, title, details.get(rid));
  for (const token of frame.tokens) {
    const turn = turns.get(token[column.request_id]);
    if (!turn) continue;
    turn.times.push(token[column.t]);
    if (token[column.cause] && token[column.usual_ms]) turn.late.push([token[column.t], token[column.usual_ms]]);
  }
  for (const [rid, index, text] of frame.texts || []) {
    const turn = turns.get(rid);
    if (!turn) continue;
    turn.text += text;
    turn.widths[index - turn.first] = (turn.widths[index - turn.first] || 0) + text.length;
  }
}

/* The number of characters that can be shown: those of the tokens so far and, after the last one, those that the end
 * added. A request's end and its last token may be in two frames. */
function lengthOf(turn, known) {
  const { times, widths, text, first } = turn;
  if (!known || (known.finished !== null && first + times.length >= known.tokens)) return text.length;
  return times.reduce((sum, _, i) => sum + (widths[i] || 0), 0);
}

// ---- what lanes lack ----------------------------------------------------------------------------------------------
/** What the lanes lack after these frames. @param {Frame[]} frames @returns {LaneNews[]} */
export function laneNews(frames) {
  for (const frame of frames) take(frame);
  const list = [];
  for (const [lane, all] of lanes) {
    const last = all[all.length - 1], known = store.requests.get(last.rid);
    if (!known) continue;
    const had = sent.get(lane), now = figures(last, known), chars = lengthOf(last, known), tokens = last.times.length;
    const key = `${last.rid} ${now.state} ${tokens} ${chars} ${now.computed}`;
    if (had && had.key === key && now.waiting_ms === null) continue;
    const whole = () => all.map((turn) => turnNews(turn, store.requests.get(turn.rid), null));
    const turns = had ? [turnNews(last, known, had)] : whole(), order = had ? null : all.map((turn) => turn.rid);
    list.push({ lane, rid: last.rid, title: last.title, have: "", order, turns, ...now });
    sent.set(lane, { key, chars, tokens, late: last.late.length });
  }
  return list;
}

function figures(turn, known) {
  const gaps = turn.times.slice(1).map((t, i) => t - turn.times[i]).filter((gap) => gap > 0);
  return {
    ...aboutRequest(known),
    tokens: known.finished === null ? turn.first + turn.times.length : known.tokens,
    ttft_ms: known.ttft_ms,
    itl_p50: gaps.length ? median(gaps) : null,
    tok_s: rate(turn.times),
    waiting_ms: known.finished === null ? Math.max(0, clock() - known.submitted) : null,
    computed: known.computed,
    target: known.target || known.prompt_tokens,
    reason: known.reason,
  };
}

const aboutRequest = (known) => ({
  state: stateOf(known),
  prompt: known.prompt_tokens,
  cached: known.cached + known.shared,
  error: known.error,
});

/* Times are sent in hundredths of a millisecond since the previous token. */
function turnNews(turn, known, had) {
  const { tokens, chars, late } = had || { tokens: 0, chars: 0, late: 0 },
    hundredths = turn.times.map((t) => Math.round(100 * t));
  return {
    rid: turn.rid,
    question: turn.title,
    left_out: 0,
    thinking: turn.thinking,
    text_from: chars,
    text: turn.text.slice(chars, lengthOf(turn, known)),
    tokens_from: tokens,
    widths: turn.times.map((_, i) => turn.widths[i] || 0).slice(tokens),
    times: hundredths.slice(tokens).map((t, i) => t - (hundredths[tokens + i - 1] || 0)),
    late: turn.late.slice(late),
    ...(known ? aboutRequest(known) : { state: "done" }),
  };
}

function stateOf(known) {
  if (known.finished !== null) return { abort: "stopped", error: "error" }[known.reason] || "done";
  if (known.first !== null) return "decode";
  return known.target ? "prefill" : store.absent.steps ? "waiting" : "queued";
}

function rate(times) {
  const newest = times.slice(-RATE_TOKENS), span = newest[newest.length - 1] - newest[0];
  return span > 0 ? Math.round(((newest.length - 1) * 10000) / span) / 10 : null;
}
