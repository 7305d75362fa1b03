/* What another server reports in its metrics of all its clients together, over the time that the charts show. */
import { format } from "../shared/format.js";
import { store } from "../shared/store.js";
import { loadBefore } from "./replicas.js";

const { amount, count, many, percent } = format;

/** Lines, each with its name and its words. @returns {[string, string][]} */
export function served() {
  const last = store.loads[store.loads.length - 1], from = last && loadBefore(last);
  if (!last) return [];
  const rise = (name) => (last[name] ?? null) === null ? 0 : Math.max(0, last[name] - (from[name] ?? 0));
  const mean = (words, sum, of) => rise(of) ? `${words} ${amount((1000 * rise(sum)) / rise(of), "ms")}` : "";
  const each = (words, name, noun) => rise(name) ? `${many(rise(name), noun)} ${words}`.trim() : "";
  const seconds = (last.t - from.t) / 1000, step = rise("steps") && rise("step_tokens") / rise("steps");
  /** @type {[string, string[]][]} */
  const lines = [
    ["All clients", [
      rise("generation_tokens") ? `${count(rise("generation_tokens") / seconds)} tok/s` : "",
      mean("TTFT", "ttft_s", "first_tokens"),
      mean("ITL", "itl_s", "gaps"),
      mean("queue", "queue_s", "ended"),
      mean("prefill", "prefill_s", "ended"),
      mean("decode", "decode_s", "ended"),
    ]],
    ["Their steps", [step ? `${count(rise("steps") / seconds)}/s of ${many(Math.round(step), "token")}` : ""]],
    ["Their prompts", [
      each("computed", "computed_tokens", "token"),
      each("found in the prefix cache", "prefix_hits", "token"),
      each("received from elsewhere", "external_tokens", "token"),
    ]],
    ["Their drafts", [
      rise("draft_tokens") ? `${percent((100 * rise("accepted_tokens")) / rise("draft_tokens"), 0)} accepted` : "",
    ]],
    ["Their requests", [
      each("", "preemptions", "preemption"),
      last.deferred ? `${count(last.deferred)} wait for something other than a place` : "",
      each("refused, as its queue was full", "rejected", "request"),
      last.awake === 0 ? "it sleeps: wake it up" : "",
    ]],
  ];
  return lines.map(([name, words]) => /** @type {[string, string]} */ ([name, words.filter(Boolean).join(" · ")]))
    .filter(([, words]) => words);
}

/** How many requests of any client it preempted about then; 0 if none, or if it does not say. */
export function preemptedAbout(from, to) {
  const loads = store.loads.filter(({ preemptions }) => (preemptions ?? null) !== null);
  const before = loads.findLast(({ t }) => t <= from) ?? loads[0], after = loads.find(({ t }) => t >= to);
  return before ? Math.max(0, (after ?? loads[loads.length - 1]).preemptions - before.preemptions) : 0;
}
