/* A popover beside a block with what is known about it; fetched again when the block has changed. */
import { ask } from "../shared/ask.js";
import { blocks } from "../shared/blocks.js";
import { make } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { poll } from "../shared/poll.js";
import { factList, factRow, popover, requestTag } from "../shared/popover.js";
import { store } from "../shared/store.js";
import { tab } from "../shared/tab.js";
import { clock } from "../shared/time.js";

const AGAIN_MS = 700, BUSY_MS = 2000, TIMEOUT_MS = 6000, MOST_HOLDERS = 12;

/** The one that is open. @type {{block: number, seen: string, timer: number, body: HTMLElement | null} | null} */
let open = null;

/** Open the popover of a block beside a point of the window; `closed` is called at its end. */
export function blockInfo(block, x, y, closed) {
  const mine = (open = { block, seen: "", timer: 0, body: null });
  popover.open({
    name: "block",
    title: `Block ${block}`,
    x,
    y,
    fill(body) {
      mine.body = body;
      body.append(make("p", "", "Asking the engine …"));
    },
    closed() {
      clearTimeout(mine.timer);
      if (open === mine) open = null;
      closed();
    },
  });
  look(mine);
}

const state = (block) => `${blocks.references[block]} ${blocks.owner[block]} ${blocks.findable[block]}`;

/* What a recording tells about a block: its frames have the block's holder, but not its content. */
function recorded(mine) {
  const { references, owner, findable } = blocks, n = mine.block;
  mine.seen = state(n);
  const kind = ["free", "cached", "active", "shared"][blocks.kind(n)];
  mine.body.replaceChildren(
    make("p", "", "A recording does not contain what is in blocks, only which requests held them."),
    factList(
      factRow("state", kind),
      factRow("holders", String(references[n])),
      factRow("longest held by", ...holders(owner[n] >= 0 ? [owner[n]] : [])),
      factRow("findable", blocks.isPinned(n) ? "yes, pinned" : findable[n] ? "yes" : "no"),
    ),
  );
}

async function look(mine) {
  if (poll.held) return recorded(mine);
  mine.seen = state(mine.block);
  const answer = await ask(`/block/${mine.block}`, { query: { tab }, ms: TIMEOUT_MS }).catch((error) => error);
  if (open !== mine) return;
  if (answer instanceof Error) mine.body.replaceChildren(make("p", "", `Not available now. ${answer.message}`));
  else fill(mine.body, answer);
  popover.fit();
  if (answer.status === 503) askAgain(mine, BUSY_MS); // in a long step, say
}

function askAgain(mine, wait) {
  clearTimeout(mine.timer);
  mine.timer = setTimeout(() => {
    mine.timer = 0;
    if (open === mine) look(mine);
  }, wait);
}

on("frame", () => {
  if (open && !open.timer && state(open.block) !== open.seen) askAgain(open, AGAIN_MS);
});

function fill(body, info) {
  const text = info.text === null ? [] : [make("blockquote", { "aria-label": "Its text" }, info.text)];
  body.replaceChildren(
    sentence(info),
    ...text,
    factList(
      factRow("held by", ...holders(info.holders)),
      factRow("place in its text", place(info)),
      factRow("tokens", info.tokens && !text.length ? `${info.tokens}, text not from this tab` : String(info.tokens)),
      factRow("last use", lastUse(info)),
    ),
  );
}

function sentence({ state, holders, findable }) {
  const bold = (words) => make("b", "", words);
  const words = {
    shared: () => [bold(`${holders.length} requests`), " read it; it was computed once."],
    active: () => ["One request holds it", findable ? "; a new prompt that begins the same would share it." : "."],
    cached: () => ["No request holds it. It is ", bold("kept"), " for a prompt that begins the same."],
    free: () => ["Nothing is in it."],
  };
  return make("p", "", ...words[state]());
}

function holders(rids) {
  const named = rids.slice(0, MOST_HOLDERS).map(requestTag), more = rids.length - MOST_HOLDERS;
  return rids.length ? [...named, ...(more > 0 ? [` and ${more} more`] : [])] : ["none"];
}

function place({ depth, tokens }) {
  const { info } = store, { count } = format;
  if (depth === null) return "–";
  const first = depth * (info ? info.block_size : 0);
  const range = info && tokens ? `, tokens ${count(first)}–${count(first + tokens - 1)}` : "";
  return `block ${count(depth + 1)}${range}`;
}

function lastUse({ last_use: step }) {
  if (step < 0) return "never";
  const row = store.stepRow(step), { steps } = store;
  const ago = row < 0 ? "" : `, ${format.seconds(Math.max(0, clock() - steps.t1[row & steps.mask]))} ago`;
  return `step ${format.count(step)}${ago}`;
}
