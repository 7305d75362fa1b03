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

/* Typed arrays sort numbers without a comparison: owner and block are one number. */
function byRequest() {
  const { total, owner, kind, CACHED } = blocks, held = [], cached = [], free = [];
  for (let block = 1; block <= total; block++) {
    if (owner[block] >= 0) held.push(owner[block] * (total + 1) + block);
    else (kind(block) === CACHED ? cached : free).push(block);
  }
  const order = new Int32Array(total);
  Float64Array.from(held).sort().forEach((key, i) => (order[i] = key % (total + 1)));
  order.set(cached, held.length);
  order.set(free, held.length + cached.length);
  return order;
}
