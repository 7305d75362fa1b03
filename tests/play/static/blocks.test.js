import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { blocksName, ranges } from "../../../roseplay/play/static/live/cellinfo.js";
import { blockOrder } from "../../../roseplay/play/static/live/blockorder.js";
import { blocks } from "../../../roseplay/play/static/shared/blocks.js";
import { randomNumbers, startAnew, take } from "./traffic.js";

const pool = (total) => ({ num_blocks: total + 1, block_size: 16 });

test("a run of blocks is taken as one row", () => {
  const used = { info: pool(1000), blocks_used: 950 };
  startAnew({ ...used, blocks: [[1, 0, -1, 1, 900], [5, 3, 2, 1, 2]] });
  take([{ blocks: [[11, 0, -1, 0, 10], [999, 1, 4, 0, 500], [1, 1, 4, 1]] }]);
  assert.deepEqual(blocks.counts(), { free: 108, cached: 887, active: 3, shared: 2, pinned: 0, unused: 0, saved: 4 });
  startAnew({ ...used, boot: "two", blocks: [[7, 1, 4, 0]] });
  assert.deepEqual(blocks.counts(), { free: 999, cached: 0, active: 1, shared: 0, pinned: 0, unused: 50, saved: 0 });
});

test("blocks by request", () => {
  const random = randomNumbers(4), rows = new Map();
  for (let block = 1; block < 250; block++) {
    const states = [[1, Math.floor(random() * 10), 0], [0, -1, 1], [0, -1, 0]];
    rows.set(block, [block, ...states[Math.floor(random() * 3)]]);
  }
  startAnew({ info: pool(300), blocks: [...rows.values()] });
  const numbers = Array.from({ length: 300 }, (_, i) => i + 1);
  const place = (block) => {
    const [, references, owner, findable] = rows.get(block) ?? [block, 0, -1, 0];
    return [references ? 0 : findable ? 1 : 2, references ? owner : 0, block];
  };
  const inOrder = numbers.toSorted((a, b) => {
    const [x, y] = [place(a), place(b)];
    return x[0] - y[0] || x[1] - y[1] || x[2] - y[2];
  });
  assert.deepEqual([...blockOrder(true)], inOrder);
  assert.deepEqual([...blockOrder(false)], numbers);
});

test("numbers of blocks in few words", () => {
  const odd = Array.from({ length: 20 }, (_, i) => 2 * i + 1);
  const lists = [[7], [1, 2, 3, 9], [1, 3, 5, 7, 8, 9], odd];
  const words = ["7", "1–3, 9", "1, 3, 5 and 3 more", "1, 3, 5 and 17 more"];
  assert.deepEqual(lists.map((numbers) => ranges(numbers, 3)), words);
  assert.deepEqual([[33, 34, 35], [2, 9]].map((numbers) => blocksName(Int32Array.from(numbers))), [
    "Blocks 33–35",
    "2 blocks",
  ]);
});

test("pinned blocks are cached blocks that stay", () => {
  startAnew({ info: pool(10), blocks: [[1, 0, -1, 2, 3], [4, 1, 7, 2], [5, 0, -1, 1]], blocks_used: 5 });
  assert.deepEqual(blocks.counts(), { free: 5, cached: 4, active: 1, shared: 0, pinned: 4, unused: 5, saved: 0 });
  assert.deepEqual([1, 4, 5].map(blocks.isPinned), [true, true, false]);
  take([{ blocks: [[2, 0, -1, 1], [3, 0, -1, 0]] }]);
  assert.equal(blocks.counts().pinned, 2);
});
