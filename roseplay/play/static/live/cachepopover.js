/* The popover "Why was my prompt not cached?", beside the pressed element. The reason is in the store; the prompt's
 * text, for the tab that sent it, comes from the server. */
import { ask } from "../shared/ask.js";
import { make } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { poll } from "../shared/poll.js";
import { factList, factRow, popover } from "../shared/popover.js";
import { store } from "../shared/store.js";
import { tab } from "../shared/tab.js";
import { clock } from "../shared/time.js";
import { blocksOf, helps, sentenceOf } from "./cachewords.js";
import { paragraph } from "./whypopover.js";

/** @import { Miss } from "../shared/records.js" */

const MOST_CELLS = 56, TIMEOUT_MS = 6000, BLOCK = 16;

/** What the server knows about a prompt; see play/prompt_cache.py.
 * @typedef {{prompt: number, cached: number, miss: Miss | null, nearest: {lane: number, text: string} | null,
 *   text: {found: string, same: string, differs: string, rest: string, cut: [number, number]} | null}} Facts */

on("cached", ({ rid, element }) => {
  popover.toggle({
    name: "cache",
    rid,
    title: "Why was my prompt not cached?",
    opener: element,
    side: "below",
    fill: () => body(rid, null),
    asks: poll.held ? null : () =>
      // a recording has the reason, but not the prompts' tokens
      ask(`/prompt/${rid}`, { query: { tab }, ms: TIMEOUT_MS }).then((answer) => body(rid, answer)).catch(() => null),
  });
});

/** @param {number} rid @param {Facts | null} answer @returns {HTMLElement[]} */
function body(rid, answer) {
  const known = store.requests.get(rid), block = store.info?.block_size || BLOCK;
  if (!answer && !known) return [make("p", "", "It ended too long ago: the reason is no longer known.")];
  if (!answer && known.first === null) return [make("p", "", "The reason is known only after its first token.")];
  const about = answer || { prompt: known.prompt_tokens, cached: known.cached + known.shared, miss: known.miss };
  const help = helps(about.cached < about.prompt ? about.miss : null);
  return [
    paragraph(sentenceOf({ ...about, block })),
    ...cells(blocksOf({ ...about, block })),
    ...(answer && answer.text ? [prompt(answer.text)] : []),
    factList(nearest(about.miss, answer), help && factRow("helps", help)),
  ];
}

function cells({ total, found, at, words }) {
  const kind = (i) => (i < found ? "rp-found" : i === at ? "rp-at" : "");
  const list = Array.from({ length: Math.min(total, MOST_CELLS) }, (_, i) => make("i", kind(i)));
  const more = total > MOST_CELLS ? [`+ ${format.count(total - MOST_CELLS)}`] : [];
  return [make("div", { className: "rp-cells", "aria-hidden": true }, ...list, ...more), make("small", "", words)];
}

/** @param {NonNullable<Facts["text"]>} text */
function prompt({ found, same, differs, rest, cut }) {
  const left = (n) => (n ? [make("em", "", `${format.count(n)} tokens `)] : []);
  const parts = [make("mark", "", found), same, ...(differs ? [make("u", "", differs)] : []), rest];
  return make("blockquote", { "aria-label": "The prompt" }, ...left(cut[0]), ...parts, ...left(cut[1]));
}

/* The prompt whose beginning is most similar; its text only if it is in a lane of this tab. */
function nearest(miss, answer) {
  if (!miss || miss.request === null || miss.reason === "computing") return null;
  const other = store.requests.get(miss.request), lane = answer && answer.nearest ? answer.nearest.lane : null;
  const when = other && other.submitted !== null ? `, ${format.ago(clock() - other.submitted)}` : "";
  const who = `request ${miss.request}${lane === null ? "" : `, lane ${lane}`}${when}`;
  if (lane === null) return factRow("nearest", `${who}: not from this tab's lanes, so its text is not shown`);
  return factRow("nearest", `${who}: the same up to here, then “${answer.nearest.text}”`);
}
