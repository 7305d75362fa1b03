/* Bursts and Stop all; and the traffic's controls suit the model: answers its context, the values its speed. */
import { call } from "../shared/ask.js";
import { on } from "../shared/events.js";
import { chosenIn, fill, inputOf, update, whenMounted } from "../shared/gradio.js";
import { tell } from "../shared/message.js";
import { poll } from "../shared/poll.js";
import { keep, ofTab, stored } from "../shared/storage.js";
import { store } from "../shared/store.js";
import { tab } from "../shared/tab.js";
import { askSuggested, forget } from "../lanes/lanes.js";
import { showStop } from "./stops.js";

/** @import { Steady } from "../shared/types.js" */

const KEPT = "roseplay-traffic";
const length = () => inputOf("answer-length", "number");
const size = () => inputOf("burst-size", "number");
let limit = null; // has Gradio ask for `answerLimit`
let pacedFor = ""; // the model

/* On the first screen, a burst finds chats to interrupt. */
export async function onBurst() {
  if (document.body.classList.contains("rp-first")) await askSuggested();
  const count = Number(size().value);
  const plan = { size: count, kind: chosenIn("mix"), max_new_tokens: Number(length().value), tab };
  const answer = await call("burst", plan), accepted = answer ? answer.ids.length : count;
  if (accepted < count) {
    tell(`The engine accepted ${accepted} of ${count} requests: too many are waiting already.`);
  }
}

export function onStop() {
  forget();
  call("stop", { tab });
}

addEventListener("pagehide", () => { // for a reload
  const values = [length(), size(), inputOf("steady-rate-value")].map((input) => Number(input?.value));
  if (pacedFor) keep(KEPT, JSON.stringify({ model: pacedFor, values }), ofTab);
});

/* Answer length, burst size and rate when this tab was reloaded, if they were chosen for this model. */
function recall(name) {
  const { model, values } = JSON.parse(stored(KEPT, ofTab) ?? "{}");
  return model === name && values.every((value) => value > 0) ? values : null;
}

/* An answer gets at most half of the model's context. */
const longest = () => Math.max(16, Math.min(256, Math.floor(store.info.max_model_len / 32) * 16));

/** Where the slider of the answers' length ends. */
export const answerLimit = () => update(store.info ? { maximum: longest() } : {});

/** The steady traffic that runs. @type {Steady | null} */
let steady = null;

on("own", (news) => (steady = news.steady && news.steady.on ? news.steady : null));

/* For a model that is new to the page, the values are those of running traffic, or suit the model's speed. */
function pace() {
  if (!store.info || poll.held) return; // a recording sends nothing
  limit?.();
  const { info, pace } = store, isNew = pace && pacedFor !== info.model;
  const [answer, burst, rate] = (isNew && recall(info.model)) || [pace?.answer, pace?.burst, pace?.rate];
  const plan = { rate, max_new_tokens: isNew ? answer : Number(length().value), ...(isNew && steady) };
  fill(length(), Math.min(plan.max_new_tokens, longest()));
  if (!isNew) return;
  pacedFor = info.model;
  fill(size(), burst);
  showStop("steady-rate", plan.rate);
}
on("reset", () => whenMounted(["answer-length", "burst-size", "steady-rate", "steady-rate-value"], pace));

/** @param {HTMLElement} _element nothing to be seen
 * @param {{limit: () => void}} events `limit` has Gradio ask for `answerLimit` */
export function mount(_element, events) {
  limit = events.limit;
  limit();
}
