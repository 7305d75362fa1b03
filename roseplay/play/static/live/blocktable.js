/* The block map as a table, with a line per holder: counts by state, then the blocks' owners. A shared block counts for
 * the request that has held it longest: the other holders are not in the frames. */
import { blocks } from "../shared/blocks.js";
import { format } from "../shared/format.js";
import { states } from "../shared/states.js";
import { requestName } from "../shared/store.js";

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
