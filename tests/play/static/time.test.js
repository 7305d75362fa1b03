import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { time } from "../../../roseplay/play/static/shared/time.js";
import { startAnew, step, submitted, take } from "./traffic.js";

const now = 60_000;

test("idle time is cut out of the views", () => {
  startAnew({ now });
  take([{ steps: [step(1, 100, 200)] }, { steps: [step(2, 50_200, 50_300)] }], { now });
  assert.deepEqual(time.cuts, [{ from: 900, to: 49_900, before: 0 }]);
  assert.deepEqual([100, 900, 30_000, 49_900, 50_300].map(time.x), [100, 900, 900, 900, 1300]);
  assert.ok(time.idle());
});

test("a stall is no idle time", () => {
  startAnew({ now });
  take([{ requests: [submitted(1, 90)], steps: [step(1, 100, 200)] }, { steps: [step(2, 50_200, 50_300)] }], { now });
  assert.deepEqual(time.cuts, []);
  assert.ok(!time.idle());
});

test("without steps, tokens and ends are work", () => {
  startAnew({ now });
  const answer = [[1, 5000, null, 1], [1, 9000, 4000, 2]];
  take([{ requests: [submitted(1, 0)], tokens: answer }, { requests: [[1, "finished", 12_000, {}]] }], { now });
  assert.deepEqual(time.cuts, []);
  assert.deepEqual([5000, 9000, 12_000, 40_000].map(time.x), [5000, 9000, 12_000, 12_700]);
  take([{ requests: [submitted(2, 50_000)] }], { now });
  assert.deepEqual(time.cuts, [{ from: 12_700, to: 49_700, before: 0 }]);
});
