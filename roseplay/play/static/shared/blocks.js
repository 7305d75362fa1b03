/* The state of every KV block, from the snapshots and frames that the store takes. */
import { on } from "./events.js";
import { store } from "./store.js";

/** What a block is; CACHED: no request holds it, but a prompt that begins the same can find it. */
const FREE = 0, CACHED = 1, ACTIVE = 2, SHARED = 3;

const empty = (total) => ({
  total, // they are numbered 1 … total
  references: new Int32Array(total + 1), // how many requests hold it
  owner: new Int32Array(total + 1).fill(-1), // who has held it longest, -1: nobody
  findable: new Uint8Array(total + 1),
});

export const blocks = { FREE, CACHED, ACTIVE, SHARED, ...empty(0), kind, counts };

function take(changes) {
  for (const [block, references, owner, findable] of changes || []) {
    if (block < 1 || block > blocks.total) continue;
    blocks.references[block] = references;
    blocks.owner[block] = owner;
    blocks.findable[block] = findable;
  }
}

function kind(block) {
  const n = blocks.references[block];
  return n > 1 ? SHARED : n === 1 ? ACTIVE : blocks.findable[block] ? CACHED : FREE;
}

/** How many there are of each kind, and how many blocks sharing makes unnecessary. */
function counts() {
  const n = [0, 0, 0, 0];
  let saved = 0;
  for (let block = 1; block <= blocks.total; block++) {
    n[kind(block)]++;
    if (blocks.references[block] > 1) saved += blocks.references[block] - 1;
  }
  return { free: n[FREE], cached: n[CACHED], active: n[ACTIVE], shared: n[SHARED], saved };
}

on("reset", ({ snapshot }) => {
  const { info } = store; // block 0 is never handed out
  Object.assign(blocks, empty(info ? info.num_blocks - 1 : 0));
  if (snapshot) take(snapshot.blocks);
});
on("frame", (delta) => {
  for (const frame of delta.frames || []) take(frame.blocks);
});
