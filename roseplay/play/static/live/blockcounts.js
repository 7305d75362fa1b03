/* The counts of blocks: the legend under the block map, a sentence, and a table with a line per holder: counts by
 * state, then the owners of blocks. A shared block counts for the request that has held it longest: the other holders
 * are not in the frames. */
import { make, svg, write } from "../shared/dom.js";
import { format } from "../shared/format.js";
import { blocks } from "../shared/blocks.js";
import { states } from "../shared/states.js";
import { requestName } from "../shared/store.js";

/** @returns {import("../shared/dom.js").Shape} */
const rect = (x, width, color, y = 0, height = 13) => ["rect", { x, y, width, height, fill: `var(--rp-${color})` }];
/** @type {import("../shared/dom.js").Shape} */
const three = ["path", { d: "M3 3h3v5h-3v-1h2v-1h-2v-1h2v-1h-2z", fill: "var(--rp-surface)" }];
/** @type {import("../shared/dom.js").Shape} */
const hollow = ["rect", { x: 1.5, y: 0.5, width: 7, height: 12, fill: "none", stroke: "var(--rp-cachedline)" }];
/** @type {[string, import("../shared/dom.js").Shape[], string][]} */
const MARKS = [
  ["active", [rect(0, 4, "c0"), rect(5, 4, "c1"), rect(10, 3, "c8")], "one owner"],
  ["shared", [rect(1, 7, "shared"), three, rect(1, 7, "c0", 11, 2)], "shared"],
  ["cached", [hollow], "cached"],
  ["pinned", [hollow, rect(1, 8, "ink", 0, 2)], "pinned"],
  ["free", [rect(1, 8, "free")], "free"],
];

/** Put a line of marks and counts under a plot. Returns functions that write the counts, and those of states. */
export function blockLegend(plot) {
  const count = () => make("b", "", "–");
  const entry = (shapes, words) => make("span", "rp-lg", svg(13, 13, ...shapes), `${words} `, count());
  /** @type {[string, HTMLElement][]} */
  const entries = MARKS.map(([name, shapes, words]) => [name, entry(shapes, words)]);
  const unit = make("span", "", " blocks");
  entries.push(["saved", make("span", "rp-lg rp-saves", "saves ", count(), unit)]);
  for (const [name, element] of entries) element.dataset.of = name;
  const states = make("span", "rp-lg rp-narrow"); // where the panel's head has no room for them
  plot.after(make("div", "rp-under", ...entries.map(([, element]) => element), states));
  const pinned = entries.find(([name]) => name === "pinned")[1];
  const places = entries.map(([name, element]) => [name, element.querySelector("b")]);
  return [
    (counts) => {
      pinned.style.display = counts.pinned ? "" : "none";
      unit.style.display = counts.pinned ? "none" : ""; // there is no room for both
      places.forEach(([name, place]) => write(place, format.count(counts[name])));
    },
    (words) => write(states, words),
  ];
}

// ---- as a table, and in words ------------------------------------------------------------------------------
const COLUMNS = [
  ["held by", "The request that has held them longest, and its lane."],
  ["blocks"],
  ["shared", "Of these, also held by other requests."],
  ["cached", "Of these, findable: a prompt that begins the same would share them."],
];

/* Map rid -> [blocks, shared, findable]. */
function holders() {
  const counts = new Map();
  for (let block = 1; block <= blocks.total; block++) {
    if (blocks.references[block] < 1) continue;
    const rid = blocks.owner[block], row = counts.get(rid) || [0, 0, 0];
    row[0]++;
    row[1] += blocks.references[block] > 1;
    row[2] += Number(blocks.findable[block] > 0);
    counts.set(rid, row);
  }
  return counts;
}

/* The sentence on states, for a model with recurrent layers. */
function stateSentence() {
  const { slots, total } = states, { count } = format, n = states.counts();
  if (!total) return "";
  const kept = total > slots ? `, ${count(n.kept)} of ${count(total - slots)} states are kept` : "";
  return ` ${count(n.used)} of ${count(slots)} state slots are in use${kept}.`;
}

/** "Of 448 blocks …", for table and map. */
export function blockSentence() {
  const { total } = blocks, { count } = format, n = blocks.counts();
  const more = (n.pinned ? ` ${count(n.pinned)} are pinned.` : "") + stateSentence();
  const unused = n.unused ? `, ${count(n.unused)} of these never used` : "";
  return `Of ${count(total)} blocks ${count(n.active)} have one owner, ${count(n.shared)} are shared, ` +
    `${count(n.cached)} cached, ${count(n.free)} free${unused}; sharing saves ${count(n.saved)}.${more}`;
}

function read() {
  const { count } = format, n = blocks.counts(), held = [...holders()].sort(([a], [b]) => a - b);
  return {
    caption: `${blockSentence()} A shared block is listed under the request that has held it longest.`,
    rows: [
      ["none, cached", count(n.cached), "0", count(n.cached)],
      ["none, free", count(n.free), "0", "0"],
      ...held.map(([rid, row]) => [rid < 0 ? "unknown" : requestName(rid), ...row.map(count)]),
    ],
  };
}

export const TABLE = { name: "KV blocks as a table", columns: COLUMNS, read };
