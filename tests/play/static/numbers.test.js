import { written } from "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { format } from "../../../roseplay/play/static/shared/format.js";
import { median, niceAxis, quantile } from "../../../roseplay/play/static/shared/numbers.js";

test("quantiles lie between neighbours", () => {
  const cases = /** @type {[number[], number, number][]} */ ([
    [[5.0], 0.99, 5],
    [[1, 2, 3, 4], 0.5, 2.5],
    [[1, 2, 3, 4], 0, 1],
    [[1, 2, 3, 4], 1, 4],
    [[0, 10], 0.95, 9.5],
  ]);
  for (const [values, q, expected] of cases) assert.equal(quantile(values, q), expected, `${values} at ${q}`);
});

test("an empty list has no quantile", () => {
  assert.deepEqual([quantile([], 0.5), median([])], [NaN, NaN]);
  assert.equal(median([3, 1, 2]), 2);
});

test("axis ticks are round numbers", () => {
  for (const [most, parts, expected] of [[160, 4, 160], [161, 4, 200], [0.9, 3, 0.9], [7, 3, 7.5], [0, 2, 1e-6]]) {
    const { max, step } = niceAxis(most, parts);
    assert.ok(Math.abs(max - expected) < 1e-12, `${max} for ${most}`);
    assert.ok(Math.abs(step * parts - max) < 1e-12);
  }
});

test("numbers in words", () => {
  const { count, limit, many, ms, seconds, short } = format;
  assert.deepEqual([1936, 1234567.4, null].map(count), ["1\u202f936", "1\u202f234\u202f567", "–"]);
  assert.deepEqual([99.94, 1234.5].map(ms), ["99.9", "1\u202f235"]);
  assert.equal(limit(null), "∞");
  assert.deepEqual([448, 15_523, 200_000].map(short), ["448", "15.5k", "200k"]);
  assert.deepEqual([999, 1500].map(seconds), ["999 ms", "1.5 s"]);
  assert.deepEqual([1, 2].map((n) => many(n, "step")), ["1 step", "2 steps"]);
});

/* A script writes tables, and the server writes the sentences beside them. */
test("numbers read as in the sentences of the server", () => {
  const { values, pairs, figures, ratios, ranges, amounts } = written;
  assert.ok(values.length > 400);
  assert.deepEqual(values.map(format.figure), figures);
  assert.deepEqual(values.map(format.ratio), ratios);
  assert.deepEqual(pairs.map(format.range), ranges);
  assert.deepEqual(values.map((value) => format.amount(value)), amounts);
});

test("the mark of slow motion is the server's", () => {
  assert.deepEqual(written.factors.map(format.slowed), written.slowed);
  assert.deepEqual([[1], [5], [1, 5]].map(format.slowed), ["", " at ×5", " partly at ×5"]);
});

test("times of a second or more stand in seconds where there is little room, and what was long ago in minutes", () => {
  assert.deepEqual(format.times([4, 12.34]), { parts: ["4.0", "12.3"], unit: "ms" });
  assert.deepEqual(format.times([4, 1234]), { parts: ["0.004", "1.23"], unit: "s" });
  assert.deepEqual(format.times([null, 12_340]), { parts: ["–", "12.3"], unit: "s" });
  assert.deepEqual([999, 1000, 61_000].map(format.shortMs), ["999", "1 s", "61 s"]);
  assert.deepEqual([-5, 700, 2500, 480_000].map(format.ago), ["0 ms ago", "700 ms ago", "2.5 s ago", "8 min ago"]);
});
