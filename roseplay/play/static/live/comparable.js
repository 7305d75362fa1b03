/* Which bursts can be compared: those that ask the same of the same engine. Their settings may differ, as these are
 * what is compared, and so may their seeds, which choose the words of their prompts but not how long they are. */
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { factors, settingAt } from "../shared/past.js";
import { store } from "../shared/store.js";

/** @import { Request } from "../shared/types.js" */

const ALIKE = 0.1, FEW = 1; // shares of prompt tokens, and numbers of other requests, may differ by this

/** What the server says of a burst, and how many others were unfinished when it arrived (the page forgets them). */
const figures = new WeakMap(), others = new WeakMap();
on("frame", ({ snapshot, frames }) => {
  for (const { burst } of [snapshot ?? {}, ...(frames ?? [])]) {
    if (store.bursts.has(burst?.burst)) figures.set(store.bursts.get(burst.burst), burst);
  }
});

/** What a burst asked of the engine, and in which state. @param {{id: number, t: number, requests: Request[]}} burst */
export function asked(burst) {
  const { id, t, requests } = burst, { label: kind, answer } = figures.get(burst) ?? {};
  const stopped = ({ reason }) => reason === "abort"; // so soon that it hardly mattered
  const total = (count) => requests.reduce((sum, one) => sum + count(one), 0);
  const open = (one) => one.burst !== id && one.submitted < t && (one.finished ?? Infinity) > t && !stopped(one);
  if (!others.has(burst)) others.set(burst, [...store.requests.values()].filter(open).length);
  const prompt = total((one) => one.prompt), saved = total((one) => one.cached + one.shared) / Math.max(1, prompt);
  return {
    ...{ size: requests.length, kind, answer, prompt, others: others.get(burst) },
    saved: requests.every((one) => one.ttft !== null) ? saved : null, // unknown before
    sharing: `${settingAt("prefix_cache", t)} ${settingAt("same_step_sharing", t)}`,
    slow: factors(t, Math.max(...requests.map((one) => one.first))).join(),
  };
}

/** Why an earlier burst cannot be compared with a later one, as `asked` describes them; "" if it can. */
export function whyNot(before, after) {
  if (before.size !== after.size) return `it had ${format.many(before.size, "request")}`;
  if (before.answer !== after.answer) return "its answers had another length";
  const longer = Math.abs(before.prompt - after.prompt) > ALIKE * after.prompt;
  if (before.kind !== after.kind || longer) return "it had other prompts";
  if (before.slow !== after.slow || before.slow.includes(",")) return "slow motion was another";
  if (Math.abs(before.others - after.others) > FEW) return `${before.others} other requests were running`;
  const cached = before.saved !== null && after.saved !== null && Math.abs(before.saved - after.saved) > ALIKE;
  return cached && before.sharing === after.sharing ? "another part of it was cached" : "";
}
