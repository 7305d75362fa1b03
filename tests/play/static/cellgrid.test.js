import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { layOut } from "../../../roseplay/play/static/live/cellgrid.js";

const ALL = new Int32Array(2_000_000).map((_, i) => i + 1);
const numbers = (count, from = 0) => ALL.subarray(from, from + count);

/** The cells of `total` blocks, of which `used` have been used, above groups of `below` cells. */
function laidOut(width, height, total, used, below = [], zoom = null) {
  const groups = below.map((count, i) => numbers(count, 1000 * i));
  return layOut(width, height, { order: numbers(total), used }, groups, zoom);
}

for (const [width, height] of [[556, 118], [700, 400], [366, 140]]) {
  for (const below of [[], [64, 32]]) {
    test(`${width} x ${height} px have room for every used block, and ${below.length} groups below`, () => {
      for (const total of [12, 448, 900, 15_522, 200_000, 2_000_000]) {
        for (const used of new Set([0, 1, Math.min(total, 90), Math.floor(total / 2), total - 1, total])) {
          const { grids: [blocks, ...others], bar } = laidOut(width, height, total, used, below);
          assert.ok(blocks.numbers.length >= used, "each used one has a cell");
          assert.equal(blocks.numbers.length + (bar ? bar.count : 0), total, "each in a cell, or in the bar");
          assert.ok(!bar || bar.height < 2 * 15 + 4, "a strip, not half of the map");
          assert.ok(blocks.count <= blocks.columns * blocks.rows);
          assert.ok(Math.min(blocks.dx, blocks.dy) >= 3);
          assert.ok(blocks.per === 1 || blocks.dx === 3, "joined only where cells would be smaller");
          const left = height - blocks.bottom;
          assert.ok(
            blocks.per === 1 || bar || below.length || blocks.dy === 6 || left < blocks.rows + 4,
            "all is used",
          );
          assert.deepEqual(others.map((other) => other.numbers.length), below);
          const ends = [bar ? bar.top + bar.height : blocks.bottom, ...others.map((other) => other.bottom)];
          assert.deepEqual(ends, ends.toSorted((a, b) => a - b));
          assert.ok(ends[ends.length - 1] <= height, `${total}, ${used}`);
        }
      }
    });
  }
}

test("a small pool has a cell for unused blocks too", () => {
  const { grids, bar, most } = laidOut(556, 118, 448, 0);
  assert.equal(bar, null);
  assert.equal(most, 0, "nothing to zoom");
  const [{ columns, rows, dx, dy, numbers }, ...others] = grids;
  assert.deepEqual([columns, rows, dx, dy, numbers.length, others], [64, 7, 8, 15, 448, []]);
});

test("each step of the zoom shows about half as many blocks", () => {
  const zoomed = (level, first) => laidOut(556, 118, 200_000, 200_000, [], { level, first });
  const everything = laidOut(556, 118, 200_000, 200_000);
  let before = 200_000;
  for (let level = everything.most - 1; level >= 0; level--) {
    const layout = zoomed(level, 100_000), shown = layout.grids[0].numbers;
    assert.equal(layout.level, level);
    assert.ok(layout.first <= 100_000 && 100_000 < layout.first + shown.length, "what it is zoomed to is in view");
    assert.equal(layout.first, shown[0] - 1);
    const share = shown.length / before;
    assert.ok((0.35 < share && share < 0.6) || level === everything.most - 1);
    before = shown.length;
  }
  assert.equal(before, 448);
  const last = zoomed(0, 1e9);
  assert.equal(last.first + last.grids[0].numbers.length, 200_000, "no further than the last row");
  assert.equal(laidOut(556, 118, 200_000, 90, [], { level: 3, first: 0 }).most, 0, "all are in view anyway");
});
