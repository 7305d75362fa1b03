/* The kinds of blocks, and what is in a cell of the block map, in a few words and in a popover beside it: a block,
 * several that one cell joins, a state slot or a kept state. */
import { ask } from "../shared/ask.js";
import { blocks } from "../shared/blocks.js";
import { make, makeButton } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { poll } from "../shared/poll.js";
import { factList, factRow, popover, requestTag } from "../shared/popover.js";
import { states } from "../shared/states.js";
import { store } from "../shared/store.js";
import { tab } from "../shared/tab.js";
import { isBlock, slotOf } from "./blockcells.js";
import { agoOf } from "./span.js";

const TIMEOUT_MS = 6000, MOST_HOLDERS = 12, MOST_LISTED = 6;

/* What a block can be, by its kind (see blocks.js): its name, what it is, and what several are. */
const KINDS = [
  { name: "free", words: "free", several: "free" },
  { name: "cached", words: "cached", several: "cached" },
  { name: "active", words: "one owner", several: "with one owner" },
  { name: "shared", words: "shared", several: "shared" },
];

/** What its popover is opened with, and `words` for what is in it; `news` changes with that.
 * @typedef {{name: "block" | "cell" | "state", title: string, words: () => string, news: () => string,
 *   fill: () => Node[], asks?: () => Promise<Node[]>}} About */

/** About a cell, by the numbers that it stands for.
 * @param {Int32Array} members
 * @param {() => void} [zoomIn] shows those of a joined cell
 * @returns {About} */
export function about(members, zoomIn) {
  if (members.length > 1) return aboutJoined(members, zoomIn);
  return isBlock(members[0]) ? aboutBlock(members[0]) : aboutSlot(slotOf(members[0]));
}

export const cellOpen = () => ["block", "cell", "state"].includes(popover.name);

on("reset", () => cellOpen() && popover.close());

const paragraph = (...words) => make("p", "", ...words);

/* At most so many requests, as tags. */
function holders(rids) {
  const named = rids.slice(0, MOST_HOLDERS).map(requestTag), more = rids.length - MOST_HOLDERS;
  return rids.length ? [...named, ...(more > 0 ? [` and ${more} more`] : [])] : ["none"];
}

// ---- a block ----------------------------------------------------------------------------------------------
/** @returns {About} */
function aboutBlock(block) {
  const { references, owner, findable } = blocks;
  return {
    name: "block",
    title: `Block ${block}`,
    words: () => {
      const held = references[block] > 1 ? ` by ${references[block]}` : "";
      return KINDS[blocks.kind(block)].words + held + (owner[block] >= 0 ? `, #${owner[block]}` : "");
    },
    news: () => `${references[block]} ${owner[block]} ${findable[block]}`,
    fill: () => (poll.held ? recordedFacts(block) : [paragraph("Asking the engine …")]),
    asks: poll.held
      ? undefined
      : async () => contents(await ask(`/block/${block}`, { query: { tab }, ms: TIMEOUT_MS })),
  };
}

/* What a recording tells about a block: its frames have the block's holder, but not its content. */
function recordedFacts(block) {
  const { references, owner, findable } = blocks;
  return [
    paragraph("A recording does not contain what is in blocks, only which requests held them."),
    factList(
      factRow("state", KINDS[blocks.kind(block)].name),
      factRow("holders", String(references[block])),
      factRow("longest held by", ...holders(owner[block] >= 0 ? [owner[block]] : [])),
      factRow("findable", blocks.isPinned(block) ? "yes, pinned" : findable[block] ? "yes" : "no"),
    ),
  ];
}

function contents(info) {
  const text = info.text === null ? [] : [make("blockquote", { "aria-label": "Its text" }, info.text)];
  return [
    paragraph(...sentence(info)),
    ...text,
    factList(
      factRow("held by", ...holders(info.holders)),
      factRow("place in its text", place(info)),
      factRow("tokens", info.tokens && !text.length ? `${info.tokens}, text not from this tab` : String(info.tokens)),
      factRow("last use", lastUse(info)),
    ),
  ];
}

function sentence({ state, holders, findable }) {
  const bold = (words) => make("b", "", words);
  return {
    shared: [bold(`${holders.length} requests`), " read it; it was computed once."],
    active: ["One request holds it", findable ? "; a new prompt that begins the same would share it." : "."],
    cached: ["No request holds it. It is ", bold("kept"), " for a prompt that begins the same."],
    free: ["Nothing is in it."],
  }[state];
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
  return [`step ${format.count(step)}`, agoOf(step)].filter(Boolean).join(", ");
}

// ---- several blocks ---------------------------------------------------------------------------------------
/** @returns {About} */
function aboutJoined(members, zoomIn) {
  const numbers = members.slice().sort(), zoom = makeButton("Zoom in", { className: "rp-back", onclick });
  function onclick() {
    popover.close();
    zoomIn();
  }
  return {
    name: "cell",
    title: blocksName(members),
    words: () => kindsIn(members),
    news: () => Array.from(members, (n) => `${blocks.references[n]} ${whose(n)}`).join(),
    fill: () => [
      paragraph(`${format.many(members.length, "block")} in one cell: ${kindsIn(members)}.`),
      shares(numbers),
      zoom,
    ],
  };
}

/** "Blocks 33–64", or their number if they are not consecutive. @param {Int32Array} members */
export function blocksName(members) {
  const first = members[0], last = members[members.length - 1];
  return last - first === members.length - 1 ? `Blocks ${range(first, last)}` : format.many(members.length, "block");
}

/* How many there are of each kind: "2 shared, 3 with one owner, 20 cached, 7 free". */
function kindsIn(members) {
  const n = KINDS.map(() => 0);
  for (const block of members) n[blocks.kind(block)]++;
  const words = KINDS.map(({ several }, kind) => (n[kind] ? `${format.count(n[kind])} ${several}` : ""));
  return words.filter(Boolean).reverse().join(", ");
}

/* A block's owner or, if it has none, its kind. */
const whose = (block) => (blocks.kind(block) < blocks.ACTIVE ? KINDS[blocks.kind(block)].name : blocks.owner[block]);

/* Which blocks are whose, and which are shared. */
function shares(numbers) {
  const of = new Map(Array.from(numbers, (n) => [whose(n), []]));
  for (const block of numbers) of.get(whose(block)).push(block);
  const rids = [...of.keys()].filter((key) => typeof key === "number"), more = rids.length - MOST_LISTED;
  const named = (words, list = []) => list.length > 0 && factRow(words, ranges(list));
  return factList(
    ...rids.slice(0, MOST_LISTED).map((rid) => named(rid < 0 ? "unknown" : requestTag(rid), of.get(rid))),
    more > 0 && factRow("others", format.many(more, "request")),
    named("shared", numbers.filter((block) => blocks.kind(block) === blocks.SHARED)),
    named("cached", of.get("cached")),
    named("free", of.get("free")),
  );
}

const range = (first, last) => (first === last ? String(first) : `${first}–${last}`);

/** Increasing numbers as ranges: "3–5, 9". */
export function ranges(numbers, most = MOST_LISTED) {
  const runs = [];
  for (const number of numbers) {
    const newest = runs[runs.length - 1];
    if (newest && newest[1] === number - 1) newest[1] = number;
    else runs.push([number, number]);
  }
  const more = runs.slice(most).reduce((sum, [first, last]) => sum + last - first + 1, 0);
  return runs.slice(0, most).map(([first, last]) => range(first, last)).join(", ") +
    (more ? ` and ${format.count(more)} more` : "");
}

// ---- a state ----------------------------------------------------------------------------------------------
/** @returns {About} */
function aboutSlot(slot) {
  const kept = states.isKept(slot), words = () => stateWords(slot);
  const title = kept ? `Kept state ${slot - states.slots}` : `State slot ${slot}`;
  return { name: "state", title, words, news: words, fill: () => (kept ? keptState(slot) : running(slot)) };
}

function stateWords(slot) {
  const { request, tokens } = states;
  if (request[slot] < 0) return "free";
  return states.isKept(slot) ? `after ${format.many(tokens[slot], "token")} of #${request[slot]}` : `#${request[slot]}`;
}

function running(slot) {
  const rid = states.request[slot];
  if (rid < 0) return [paragraph("No request holds it. A request gets a slot when it begins to run.")];
  const what = "The state of the recurrent layers for one request. Its size does not depend on the length of the text.";
  return [paragraph(what), factList(factRow("held by", requestTag(rid)))];
}

function keptState(slot) {
  const rid = states.request[slot], tokens = format.count(states.tokens[slot]);
  if (rid < 0) return [paragraph("No state is kept here.")];
  return [
    paragraph(make("b", "", "Kept"), " with the blocks before it, for a prompt that begins the same."),
    factList(factRow("state of", requestTag(rid)), factRow("after", `its first ${tokens} tokens`)),
  ];
}
