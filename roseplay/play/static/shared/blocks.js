/* The state of every KV block, from the snapshots and frames that the store takes. */
import { on } from "./events.js";
import { store } from "./store.js";

/** @import { BlockRow } from "./records.js" */

/** Kinds of blocks; CACHED: no request holds it, but a prompt with the same beginning can find it. */
const FREE = 0, CACHED = 1, ACTIVE = 2, SHARED = 3;
const PINNED = 2; // in findable

const empty = (total) => ({
  total, // they are numbered 1 … total
  used: 0, // blocks above this number were never handed out: pools hand them out in order
  version: 0, // rises with every change
  references: new Int32Array(total + 1), // how many requests hold it
  owner: new Int32Array(total + 1).fill(-1), // the request that has held it longest, -1: none
  findable: new Uint8Array(total + 1), // 2: it is pinned
  ofKind: [total, 0, 0, 0], // how many there are of each kind
  saved: 0, // how many blocks sharing makes unnecessary
  pinned: 0, // how many stay in the cache
});

export const blocks = { FREE, CACHED, ACTIVE, SHARED, ...empty(0), kind, counts, isPinned };

/** @param {BlockRow[]} [rows] */
function take(rows = []) {
  for (const [first, references, owner, findable, count = 1] of rows) {
    const last = Math.min(first + count - 1, blocks.total);
    for (let block = Math.max(1, first); block <= last; block++) put(block, references, owner, findable);
    blocks.used = Math.max(blocks.used, last);
  }
  if (rows.length) blocks.version++;
}

function put(block, references, owner, findable) {
  blocks.ofKind[kind(block)]--;
  blocks.saved += Math.max(0, references - 1) - Math.max(0, blocks.references[block] - 1);
  blocks.pinned += Number(findable === PINNED) - Number(blocks.findable[block] === PINNED);
  blocks.references[block] = references;
  blocks.owner[block] = owner;
  blocks.findable[block] = findable;
  blocks.ofKind[kind(block)]++;
}

function kind(block) {
  const n = blocks.references[block];
  return n > 1 ? SHARED : n === 1 ? ACTIVE : blocks.findable[block] ? CACHED : FREE;
}

function isPinned(block) {
  return blocks.findable[block] === PINNED;
}

/** How many there are of each kind, how many are pinned, were never used, and are saved by sharing. */
function counts() {
  const { total, used, saved, pinned, ofKind: [free, cached, active, shared] } = blocks;
  return { free, cached, active, shared, pinned, unused: total - used, saved };
}

on("reset", ({ snapshot }) => {
  const { info } = store, { version } = blocks; // block 0 is never handed out
  Object.assign(blocks, empty(info ? info.num_blocks - 1 : 0), { version: version + 1 });
  if (!snapshot) return;
  take(snapshot.blocks);
  blocks.used = Math.max(blocks.used, Math.min(blocks.total, snapshot.blocks_used || 0));
});
on("frame", (delta) => {
  for (const frame of delta.frames || []) take(frame.blocks);
});
