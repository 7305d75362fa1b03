/* "Why was this token slow?": the words for what the server has decided, and facts from the store. A token that is not
 * late has no cause. */
import { format } from "../shared/format.js";
import { given } from "../shared/given.js";
import { settingAt, slowed } from "../shared/past.js";
import { store, tokenOf } from "../shared/store.js";
import { COMPUTING, partsOf, partsText } from "../shared/waits.js";

/** @typedef {string | {bold: string} | {rid: number}} Part of a sentence */
/** `cause` is a name in `SENTENCES`, and the others are what that says; times are in ms. `moved`: blocks copied back;
 * `outside`: of the model; `masks`: how long its step waited for them.
 * @typedef {{cause: string, took: number, usual?: number | null, tokens?: number, waited?: number, moved?: number,
 *   steps?: number, requests?: number[], blocks?: number, batch?: number, usualBatch?: number, outside?: number,
 *   masks?: number, waits?: {words: string, ms: number}[]}} Reason */

const MOST_NAMED = 3;
const LEAST_BUDGET = 16; // a lower one is not suggested
const NAMED = 0.1; // the least share of a gap whose place is named
const LEAST_PART = 0.005; // that is shown of its time
const { count, many } = format;
/** A time in milliseconds, without its unit. */
export const bare = (v) => v < 9.95 ? v.toFixed(1) : count(v);
export const milliseconds = (v) => `${bare(v)}\u00a0ms`;

/** What is known of a request's token in a step, or of a step that gave it none; null when the step is no longer kept.
 * @returns {{title: string, reason: Reason, sentence: Part[], step: Record<string, any>, token: any,
 *   facts: [string, Part[]][], help: string} | null} */
export function why(rid, stepId) {
  const { steps, requests, stepRow } = store, row = stepRow(stepId), slot = row & steps.mask;
  if (row < 0) return null;
  const step = Object.fromEntries(steps.names.map((name) => [name, steps[name][slot]]));
  const token = numberedToken(rid, stepId), gap = token && !Number.isNaN(token.itl);
  const factor = settingAt("slow_motion", step.t1);
  const context = { rid, step, token, known: requests.get(rid) || null, entries: store.entriesOf(slot), row, factor };
  const reason = reasonOf(context), sentence = SENTENCES[reason.cause](reason);
  const waited = context.known && token && !gap, slow = slowed(waited ? context.known.submitted : step.t1, step.t1);
  if (slow) sentence.push(` These times were measured${slow}.`);
  return { ...context, title: titleOf(context), reason, sentence, facts: factsOf(context), help: helpOf(context) };
}

function titleOf({ token }) {
  if (!token) return "What did this step compute?";
  if (Number.isNaN(token.itl)) return "Why did the first token take so long?";
  return token.cause || Number.isNaN(token.usual) ? "Why was this token slow?" : "Was this token slow?";
}

// ---- what is known ----------------------------------------------------------------------------------------
/** A request's token in a step with its number, which is null if the request's first ones are no longer kept. */
function numberedToken(rid, step) {
  const { tokens } = store, match = tokenOf(rid, step);
  let number = 1, whole = false;
  for (let i = tokens.first; i < tokens.end; i++) {
    const slot = i & tokens.mask;
    if (tokens.request_id[slot] !== rid || tokens.step_id[slot] > step) continue;
    if (Number.isNaN(tokens.itl_ms[slot])) whole = true;
    if (tokens.step_id[slot] < step) number++;
  }
  return match ? { ...match, number: whole ? number : null } : null;
}

/* Steps that began and ended within the gap and computed only other requests. */
function stepsLeftOut({ rid, token, row }) {
  const { steps } = store;
  let n = 0;
  for (let i = row - 1; i >= steps.first && steps.t0[i & steps.mask] >= token.t - token.itl - 1; i--) {
    if (store.entriesOf(i & steps.mask).every((entry) => entry.rid !== rid)) n++;
  }
  return n;
}

// ---- the reason --------------------------------------------------------------------------------------------
export const bold = (words) => ({ bold: words });

/** A sentence as its parts; a value may be a list of them. @returns {Part[]} */
export const say = (words, ...values) =>
  words.flatMap((text, i) => [text].concat(values[i] ?? [])).filter((part) => part !== "");

function names(rids) {
  const parts = [], shown = rids.length > MOST_NAMED + 1 ? rids.slice(0, MOST_NAMED) : rids;
  shown.forEach((rid, i) => parts.push(i === 0 ? "" : i === rids.length - 1 ? " and " : ", ", { rid }));
  if (shown.length < rids.length) parts.push(` and ${rids.length - shown.length} more`);
  return parts;
}

/* Which of its preemptions fell into the gap before a token, or -1. */
function preemption({ known, token }) {
  return known ? known.preempted.findIndex((t) => t <= token.t && t >= token.t - token.itl) : -1;
}

/* What it took to resume it: blocks copied from host memory, or tokens computed again. */
function resumeCost({ rid, known, token }, preempted) {
  const { steps } = store, begun = known.resumed[preempted];
  let tokens = 0, moved = 0;
  for (let row = steps.end - 1; row >= steps.first && steps.t0[row & steps.mask] >= begun; row--) {
    const slot = row & steps.mask, match = store.entriesOf(slot).find((entry) => entry.rid === rid);
    if (steps.t0[slot] <= token.t && match) tokens += match.prompt_tokens;
    if (steps.t0[slot] === begun) moved = steps.swapped_in[slot];
  }
  return { tokens, moved };
}

const sizeOf = (swapped) => format.bytes(swapped * store.info.block_size * store.info.kv_bytes_per_token);

/* Other requests whose prompts its step computed. */
function promptsOf({ entries, rid }) {
  return entries.filter((entry) => entry.prompt_tokens > 0 && entry.rid !== rid).map((entry) => entry.rid);
}

/** @returns {Reason} */
function reasonOf(context) {
  const { rid, token, known, step, entries } = context;
  if (!token) {
    const match = entries.find((entry) => entry.rid === rid);
    return { cause: "no token", took: step.t1 - step.t0, tokens: match ? match.prompt_tokens : 0 };
  }
  if (Number.isNaN(token.itl)) return ofFirst(context);
  const usual = Number.isNaN(token.usual) ? null : token.usual, gap = { cause: token.cause, took: token.itl, usual };
  const preempted = preemption(context);
  switch (token.cause) {
    case "preempted": {
      if (preempted < 0) break; // it is no longer kept
      const waited = Math.max(0, (known.resumed[preempted] ?? step.t0) - known.preempted[preempted]);
      return { ...gap, waited, ...resumeCost(context, preempted) };
    }
    case "left out":
      return { ...gap, steps: stepsLeftOut(context) };
    case "prompts":
      return { ...gap, tokens: step.prompt_tokens, requests: promptsOf(context) };
    case "masks":
      return { ...gap, masks: step.mask_wait_ms };
    case "copies":
      return { ...gap, blocks: step.block_copies };
    case "batch":
      return { ...gap, batch: step.decode_tokens, usualBatch: step.usual_batch };
    case null:
      if (usual !== null) return { ...gap, cause: "nothing unusual" };
  }
  return { ...gap, cause: "unknown", outside: Math.max(0, token.itl - step.device_ms) };
}

function ofFirst({ known, step }) {
  if (!known || known.ttft_ms === null) {
    return { cause: "first of an unknown request", took: step.t1 - step.t0, tokens: step.prompt_tokens };
  }
  const waits = partsOf(known).filter(({ words }) => words !== COMPUTING);
  if (!known.ttft_parts && known.queue_ms !== null) waits.push({ words: "in line", ms: known.queue_ms });
  return { cause: "first", took: known.ttft_ms, waits };
}

// ---- its words --------------------------------------------------------------------------------------------
const time = (v) => bold(milliseconds(v)), number = (n, noun) => bold(many(n, noun));
const promptTokens = (n) => number(n, "prompt token");
const instead = (usual) => (usual === null ? "" : ` instead of ${bare(usual)}`);

/** @type {Record<string, (reason: Reason) => Part[]>} */
const SENTENCES = {
  "no token": ({ took, tokens }) =>
    say`This step computed ${promptTokens(tokens)} of it and took ${time(took)}; it produced no token.`,
  "first of an unknown request": ({ took, tokens }) =>
    say`It is the first token of its answer: its step took ${time(took)} and computed ${promptTokens(tokens)}.`,
  first: ({ took, waits }) => {
    const parts = waits.flatMap(({ words, ms }, i) => [i ? " and " : ", of which it waited ", time(ms), ` ${words}`]);
    return say`The first token came after ${time(took)}${parts}.`;
  },
  preempted: ({ took, usual, waited, tokens, moved }) => {
    const [again, size] = moved
      ? ["copied back from host memory", sizeOf(moved)]
      : ["computed again", tokens ? many(tokens, "token") : ""];
    const lost = say`The KV pool was full: it was preempted, waited ${time(waited)} and was ${again}`;
    return [
      ...lost,
      ...(size ? say` (${bold(size)})` : []),
      ...say`, so this token took ${time(took)}${instead(usual)}.`,
    ];
  },
  "left out": ({ took, usual, steps }) =>
    say`It was left out of ${number(steps, "step")} that computed others, so it took ${time(took)}${instead(usual)}.`,
  prompts: ({ took, usual, tokens, requests }) => {
    const prompts = promptTokens(tokens);
    return say`Its step also computed ${prompts} for ${names(requests)}, so it took ${time(took)}${instead(usual)}.`;
  },
  "nothing unusual": ({ took, usual }) =>
    say`It took ${time(took)}, about as long as other tokens at that time: their median is ${time(usual)}.`,
  masks: ({ took, usual, masks }) =>
    say`Its step waited ${time(masks)} to learn which tokens structured outputs allow, so it took ${time(took)}${
      instead(usual)
    }.`,
  copies: ({ took, usual, blocks }) =>
    say`Its step copied ${number(blocks, "block")} before writing, and it took ${time(took)}${instead(usual)}.`,
  batch: ({ took, usual, batch, usualBatch }) => {
    const size = say`${number(batch, "request")} instead of ${count(usualBatch)}`;
    return say`Its step decoded for ${size}, and it took ${time(took)}${instead(usual)}.`;
  },
  unknown: ({ took, usual, outside }) => {
    const where = outside > took * NAMED
      ? say`${time(outside)} of it outside the model`
      : "nearly all of it in the model";
    return say`Nothing in its step explains it: it took ${time(took)}${instead(usual)}, ${where}.`;
  },
};

/* An estimate of how long a gap that prompts prolonged would have been with a lower budget: of its time beyond the
 * usual, the share that corresponds to the prompt tokens the step would have computed. "" if unknown. */
function helpOf(context) {
  const { token, step } = context, prompt = step.prompt_tokens, budget = 2 ** Math.floor(Math.log2(prompt / 2));
  if (token?.cause !== "prompts" || Number.isNaN(token.usual) || budget < LEAST_BUDGET) return "";
  const about = token.usual + (token.itl - token.usual) * (budget / prompt);
  const chunked = settingAt("chunked_prefill", step.t1) === false ? "chunked prefill and " : "";
  const { short } = given.settings.knobs.prefill_max_tokens;
  return `With ${chunked}${short} ${count(budget)}: about ${milliseconds(about)}.`;
}

/* Where a gap's time, or that of a step that gave no token, went: parts that add up to it. */
function placesOf({ t0, t1, device_ms, mask_wait_ms }, token, factor) {
  const took = token?.itl || t1 - t0, inStep = Math.min(took, t1 - t0);
  const model = Math.min(device_ms, inStep), masks = Math.min(mask_wait_ms, inStep - model);
  const parts = {
    model,
    masks,
    [factor > 1 ? "host and sleep" : "host"]: inStep - model - masks,
    earlier: took - inStep,
  };
  const shown = Object.entries(parts).filter(([, ms]) => ms >= took * LEAST_PART);
  return shown.map(([name, ms]) => `${name} ${milliseconds(ms)}`).join(" + ");
}

// ---- facts ------------------------------------------------------------------------------------------------
/** @returns {any[]} */
function factsOf({ rid, token, known, step, entries, factor }) {
  const prompts = entries.filter((entry) => entry.prompt_tokens > 0).length, times = known ? known.preempted.length : 0;
  return [
    ["token", [
      known && known.lane !== null ? `lane ${known.lane}` : { rid },
      token && token.number ? ` · ${count(token.number)}` : "",
    ]],
    [`step ${count(step.step_id)}`, [
      `${count(step.decode_tokens)} decode${prompts ? ` + ${many(prompts, "prompt")}` : ""}`,
    ]],
    ["queue wait", [known && known.queue_ms !== null ? milliseconds(known.queue_ms) : "–"]],
    ...(known && known.ttft_parts ? [["TTFT", [partsText(known)]]] : []),
    ["preempted", [times ? (times === 1 ? "once" : `${times} times`) : "no"]],
    ["cached, shared", [`${count(step.cached_tokens)}, ${count(step.shared_tokens)} prompt tokens`]],
    [token?.itl ? "time" : "step's time", [placesOf(step, token, factor)]],
    ...(step.mask_ms ? [["masks", [`${milliseconds(step.mask_ms)}, waited ${milliseconds(step.mask_wait_ms)}`]]] : []),
    ...(step.recomputed_tokens ? [["computed again", [many(step.recomputed_tokens, "token")]]] : []),
    ...(step.swapped_out || step.swapped_in
      ? [["swapped out, in", [`${sizeOf(step.swapped_out)}, ${sizeOf(step.swapped_in)}`]]]
      : []),
    ...(step.replayed === null ? [] : [["replayed", [step.replayed ? "yes" : "no"]]]),
  ];
}
