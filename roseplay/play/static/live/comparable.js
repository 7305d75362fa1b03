/* Which bursts can be compared: those that ask the same of the same engine. Their settings may differ, as these are
 * what is compared, and so may their seeds, which choose the words of their prompts but not how long they are. */
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { factors, settingAt } from "../shared/past.js";
import { store } from "../shared/store.js";

const ALIKE = 0.1, FEW = 1; // shares of prompt tokens, and numbers of other requests, may differ by this
const SOON_MS = 1000; // a request that is stopped so soon hardly matters

/** The other requests that were unfinished when a burst arrived; the store forgets them. */
const others = new WeakMap();
on("frame", () => store.bursts.forEach(noteOthers));

function noteOthers(burst) {
  const open = (one) => one.burst !== burst.id && one.submitted < burst.t && (one.finished ?? Infinity) > burst.t;
  if (!others.has(burst)) others.set(burst, [...store.requests.values()].filter(open));
}

/** What a burst asked of the engine, and in which state. @param {import("../shared/store.js").Burst} burst */
export function asked(burst) {
  const { t, requests, figures: { label: kind, answer } = {} } = burst;
  const stays = ({ reason, finished }) => reason !== "abort" || finished > t + SOON_MS;
  const total = (count) => requests.reduce((sum, one) => sum + count(one), 0);
  noteOthers(burst);
  const prompt = total((one) => one.prompt_tokens),
    saved = total((one) => one.cached + one.shared) / Math.max(1, prompt);
  return {
    ...{ size: requests.length, kind, answer, prompt, others: others.get(burst).filter(stays).length },
    saved: requests.every((one) => one.ttft_ms !== null) ? saved : null, // unknown before
    sharing: `${settingAt("prefix_cache", t)} ${settingAt("same_step_sharing", t)}`,
    slow: factors(t, Math.max(...requests.map((one) => one.first))).join(),
  };
}

/** Why an earlier burst cannot be compared with a later one, as `asked` describes them; "" if it can. */
export function whyNot(before, after) {
  if (before.kind === undefined && after.kind !== undefined) return "what it asked for is no longer known";
  if (before.size !== after.size) return `it had ${format.many(before.size, "request")}`;
  if (before.answer !== after.answer) return "its answers had a different length";
  const longer = Math.abs(before.prompt - after.prompt) > ALIKE * after.prompt;
  if (before.kind !== after.kind || longer) return "it had different prompts";
  if (before.slow !== after.slow || before.slow.includes(",")) return "slow motion was different or changed";
  if (Math.abs(before.others - after.others) > FEW) {
    return `${format.many(before.others, "other request")} ran at the same time`;
  }
  const cached = before.saved !== null && after.saved !== null && Math.abs(before.saved - after.saved) > ALIKE;
  return cached && before.sharing === after.sharing ? "a different share of its prompts was cached" : "";
}
