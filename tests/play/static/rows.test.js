import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { Rows } from "../../../roseplay/play/static/live/timeline.js";
import { startAnew, submitted, take } from "./traffic.js";

test("a request keeps its row, and a later one takes the first free row after the lanes", () => {
  const rows = new Rows(), all = { x0: -1e9, x1: 1e9 }, of = (...rids) => rids.map((rid) => rows.rowOf(rid));
  const ends = (rid, t) => [rid, "finished", t, { reason: "length", tokens: 1 }];
  startAnew();
  take([{ requests: [1, 2, 3, 4, 5].map((rid) => submitted(rid, 100, { burst: 1 })) }]);
  rows.update(all);
  assert.deepEqual(of(1, 2, 3, 4, 5), [4, 5, 6, 7, 8]);
  take([{ requests: [ends(3, 200), ends(4, 200), submitted(6, 400, { burst: 2 })] }]);
  rows.update(all);
  assert.deepEqual(of(1, 2, 6, 5), [4, 5, 6, 8]);
});

test("a lane's request that is known late leaves no gap", () => {
  const mine = new Set(), rows = new Rows((rid) => mine.has(rid)), all = { x0: -1e9, x1: 1e9 };
  startAnew();
  take([{ requests: [submitted(1, 100, { lane: 1 }), [1, "finished", 200, { reason: "abort", tokens: 1 }]] }]);
  take([{ requests: [submitted(2, 210, { lane: 1 }), submitted(3, 220, { burst: 1 })] }]);
  rows.update(all);
  assert.deepEqual([2, 3].map((rid) => rows.rowOf(rid)), [4, 5], "the lane's row has just been in use");
  mine.add(2);
  rows.update(all);
  assert.deepEqual([2, 3].map((rid) => rows.rowOf(rid)), [0, 4]);
});
