/* The guided demos: which one is playing, here or in another tab, and its caption. The server plays them; a recording
 * of one has its captions. Emits "demo" when this changes. */
import { call } from "../shared/ask.js";
import { emit, on } from "../shared/events.js";
import { given } from "../shared/given.js";
import { poll } from "../shared/poll.js";
import { tab } from "../shared/tab.js";
import { view } from "./view.js";

/** @import { DemoCaption } from "../shared/records.js" */
/** @import { Delta } from "../shared/types.js" */
/** @import { Given } from "../shared/given.js" */
/** One demo, with the `seconds` that it takes with this model, about, or why it is `absent` here.
 * @typedef {Given["demos"][number] & {seconds?: number, absent?: string}} Offer */

const SPAN_MS = 3000; // shown while one plays, unless its captions say otherwise

export const demos = {
  list: /** @type {Offer[]} */ (given.recording ? [] : given.demos),
  /** @type {DemoCaption | null} */
  caption: null,
  own: false, // whether it plays in this tab
  elsewhere: 0, // estimated seconds left of another tab's demo
  start,
  next,
  end,
};

let spanBefore = view.span;

function start(name = demos.list[0]?.name) {
  if (name && !poll.starting && !poll.held && !demos.caption && !demos.elsewhere) call("start_demo", { name, tab });
}

/* Go on, with the number of an answer if the caption asks for one. */
function next(guess = 0) {
  if (demos.own) call("next_caption", { tab, guess });
}

function end() {
  if (demos.own) call("end_demo", { tab });
}

/** Take a reply's newest caption and the server's status of the demo that is playing. A status is newer than the frames
 * beside it: without one, this tab's demo has ended, but its last caption stands until the frame that says so.
 * @param {DemoCaption | null | undefined} news */
function take(news, status) {
  const before = { ...demos }, ours = status ? status.own : demos.own;
  if (news !== undefined) demos.caption = news && !news.over ? news : null;
  demos.own = Boolean(ours && demos.caption);
  demos.elsewhere = status && !status.own ? status.left_s : 0;
  if (!poll.held && !ours) demos.caption = null; // another tab's
  if (demos.own !== before.own) showSpan();
  if (["caption", "own", "elsewhere"].some((name) => demos[name] !== before[name])) emit("demo");
}

function showSpan() {
  if (demos.own) spanBefore = view.span;
  view.setSpan(demos.own ? demos.caption.span_ms || SPAN_MS : spanBefore);
}

/** Take the demos' lengths with this model. */
function offer(offers = []) {
  for (const one of demos.list) {
    const { seconds, absent } = offers.find(({ name }) => name === one.name) || {};
    Object.assign(one, { seconds, absent });
  }
  emit("demos offered");
}

on("reset", (/** @type {Delta} */ { snapshot, demo }) => {
  offer(snapshot?.pace?.demos);
  take(snapshot?.demo || null, demo);
});
on("frame", (/** @type {Delta} */ { frames, demo }) => {
  const captions = (frames || []).map((frame) => frame.demo).filter(Boolean);
  take(captions[captions.length - 1], demo);
});

// ---- keys -------------------------------------------------------------------------------------------------
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !demos.own || document.querySelector("dialog[open]")) return;
  event.stopPropagation(); // the next Escape ends a zoom
  event.preventDefault();
  end();
}, true);
