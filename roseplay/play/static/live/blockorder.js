/* The order in which the block map draws blocks: as numbered, or by request, then the cached, then the free. Blocks
 * that were never used are last in both. */
import { blocks } from "../shared/blocks.js";

let known = { version: -1, grouped: false, order: new Int32Array(0) };

/** All blocks in that order; the same list until something has changed. */
export function blockOrder(grouped) {
  const { version } = blocks;
  if (known.grouped !== grouped || (grouped ? known.version !== version : known.order.length !== blocks.total)) {
    known = { version, grouped, order: grouped ? byRequest() : asNumbered() };
  }
  return known.order;
}

const asNumbered = () => Int32Array.from({ length: blocks.total }, (_, i) => i + 1);

/* Counts each group first, so that a second pass knows where each block goes: nothing is compared. */
function byRequest() {
  const { total, owner, kind, CACHED } = blocks, order = new Int32Array(total);
  const held = new Map(); // of a request, how many blocks it holds, then where its next one goes
  let cached = 0, place = 0;
  for (let block = 1; block <= total; block++) {
    if (owner[block] >= 0) held.set(owner[block], (held.get(owner[block]) || 0) + 1);
    else if (kind(block) === CACHED) cached++;
  }
  for (const rid of [...held.keys()].sort((a, b) => a - b)) {
    const count = held.get(rid);
    held.set(rid, place);
    place += count;
  }
  let free = place + cached;
  for (let block = 1; block <= total; block++) {
    const rid = owner[block];
    if (rid < 0) order[kind(block) === CACHED ? place++ : free++] = block;
    else {
      order[held.get(rid)] = block;
      held.set(rid, held.get(rid) + 1);
    }
  }
  return order;
}
