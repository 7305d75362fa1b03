/* "Why was my prompt not cached?": what is known about a request's prompt, in words. The reasons are those in
 * core/cache_miss.py. */
import { format } from "../shared/format.js";
import { store } from "../shared/store.js";
import { agoOf } from "./span.js";
import { bold, say } from "./why.js";

/** @import { Part } from "./why.js" */
/** @import { Miss } from "../shared/records.js" */

/** @typedef {{prompt: number, cached: number, miss: Miss | null, block: number}} About a prompt, `block` its size */

const { count, many, ordinal } = format;
const tokens = (n) => many(n, "token");

/* How long ago a step was, if it is known; in steps if its time no longer is. */
function ago(step) {
  if (step === null) return "";
  const { steps } = store, newest = steps.end ? steps.step_id[(steps.end - 1) & steps.mask] : step;
  return ` ${agoOf(step) || (newest > step ? `${many(newest - step, "step")} ago` : "before")}`;
}

const short = ({ prompt, miss, block }) =>
  miss.found
    ? `its last ${tokens(prompt - miss.found)} do not fill a block of ${count(block)}`
    : `it is shorter than a block of ${tokens(block)}`;

function differs({ miss, block }) {
  if (miss.position === null) {
    return [`no cached block is the same as its ${ordinal(Math.floor(miss.found / block) + 1)} block`];
  }
  return say`it differs from what is cached ${bold(`at token ${count(miss.position + 1)}`)}`;
}

const WHOLE = "Only whole blocks are shared. A shorter end is found when the very same prompt is sent again.";

/** @type {Record<string, {because: (about: any) => string | Part[], helps: string}>} */
const REASONS = {
  off: {
    because: () => "the prefix cache was off",
    helps: "Switch on Prefix cache: what is computed from then on can be found again.",
  },
  logprobs: {
    because: () => "log-probabilities of its tokens were requested, which only computing the tokens can give",
    helps: "A request without log-probabilities can reuse what this one has computed.",
  },
  state: {
    because: () => "the model's recurrent layers have no state there to continue from",
    helps: "A model with recurrent layers needs a kept state as well as the blocks of a prompt.",
  },
  computing: {
    because: ({ miss }) => say`it was still being computed by request ${{ rid: miss.request }}`,
    helps: "Switch on Same-step sharing: then one request computes it for all requests in the same step.",
  },
  evicted: {
    because: ({ miss }) => `its blocks were evicted for other requests${ago(miss.step)}`,
    helps: "Cached blocks are evicted when other requests need room: use more KV blocks, or fewer requests at a time.",
  },
  cleared: {
    because: ({ miss }) => `the cache was cleared${ago(miss.step)}`,
    helps: "It is cached again: the next prompt that begins the same will find it.",
  },
  differs: {
    because: differs,
    helps: "Keep what changes at the end: a system prompt that stays exactly the same is found again, " +
      "block by block.",
  },
  short: { because: short, helps: WHOLE },
  unfilled: { because: ({ block }) => `a block of ${tokens(block)} was never filled`, helps: WHOLE },
  ends: {
    because: ({ miss }) => `what is cached ends at token ${count(miss.found)}`,
    helps: "Only whole blocks are kept: where an answer ends within one, its end is computed again.",
  },
  new: {
    because: () => "nothing in the cache begins like it",
    helps: "From now on it is cached: the next prompt that begins the same will find it.",
  },
};

/** What would help, or "". @param {Miss | null} miss */
export const helps = (miss) => (miss && REASONS[miss.reason] ? REASONS[miss.reason].helps : "");

/** @param {About} about @returns {Part[]} */
export function sentenceOf(about) {
  const { prompt, cached, miss } = about;
  if (cached >= prompt) return say`${bold(`All ${tokens(prompt)}`)} were reused. None was computed.`;
  const there = say`${bold(`${count(cached)} of ${tokens(prompt)}`)} were reused.`;
  if (miss && miss.reason === "logits") {
    return [...there, " The last one was computed again: the first token of the answer is sampled from its logits."];
  }
  const reason = miss ? REASONS[miss.reason] : null;
  if (!reason) return [...there, " The rest was computed; the reason is not known."];
  return [...there, ` The ${cached ? "rest" : "prompt"} was computed, because `, reason.because(about), "."].flat();
}

/** The prompt's blocks: those found whole, the one in which the cached part differs or ends (-1: none), and words.
 * @param {About} about */
export function blocksOf({ prompt, cached, miss, block }) {
  const total = Math.ceil(prompt / block);
  if (cached >= prompt) return { total, found: total, at: -1, words: `all ${many(total, "block")} found` };
  const hits = Math.min(total, Math.floor((miss ? miss.found : cached) / block));
  const inside = Boolean(miss) && ["differs", "unfilled", "short"].includes(miss.reason);
  const whole = hits ? `${many(hits, "whole block")} of ${block} found` : `no whole block of ${block} found`;
  const verb = { differs: "differs inside", unfilled: "ends inside", short: "is not full" };
  const here = inside ? [`the ${ordinal(hits + 1)} ${verb[miss.reason]}`] : [];
  const after = total - hits - (inside ? 1 : 0);
  const rest = after > 0 ? [inside ? `${count(after)} after it` : `${count(after)} computed`] : [];
  return { total, found: hits, at: inside ? hits : -1, words: [whole, ...here, ...rest].join(" · ") };
}
