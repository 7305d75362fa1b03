/* Rose.blocks: the state of every KV block, filled from the snapshots and frames that Rose.store takes.
 *
 *   .total            how many blocks the pool has; they are numbered 1 … total
 *   .references .owner .findable   by block: how many requests hold it, who has held it longest (-1: nobody), whether it can be found
 *   .kind(block)      FREE, CACHED (nobody's, still findable), ACTIVE (one holder) or SHARED
 *   .counts()         {free, cached, active, shared, saved}; saved: blocks that sharing makes unnecessary */
"use strict";
(function (Rose) {
  const FREE = 0, CACHED = 1, ACTIVE = 2, SHARED = 3;
  const blocks = (Rose.blocks = { FREE, CACHED, ACTIVE, SHARED, total: 0, kind, counts });

  function size(total) {
    blocks.total = total;
    blocks.references = new Int32Array(total + 1);
    blocks.owner = new Int32Array(total + 1).fill(-1);
    blocks.findable = new Uint8Array(total + 1);
  }
  size(0);

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

  function counts() {
    const n = [0, 0, 0, 0];
    let saved = 0;
    for (let block = 1; block <= blocks.total; block++) {
      n[kind(block)]++;
      if (blocks.references[block] > 1) saved += blocks.references[block] - 1;
    }
    return { free: n[FREE], cached: n[CACHED], active: n[ACTIVE], shared: n[SHARED], saved };
  }

  Rose.on("reset", ({ snapshot }) => {
    const { info } = Rose.store; // block 0 is never handed out
    size(info ? info.num_blocks - 1 : 0);
    if (snapshot) take(snapshot.blocks);
  });
  Rose.on("frame", (delta) => {
    for (const frame of delta.frames || []) take(frame.blocks);
  });
})(window.Rose);
