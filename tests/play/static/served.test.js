import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { preemptedAbout, served } from "../../../roseplay/play/static/live/served.js";
import { time } from "../../../roseplay/play/static/shared/time.js";
import { startAnew, take } from "./traffic.js";

const UNKNOWN = { running: null, waiting: null, kv_usage: null, prefix_queries: null, prefix_hits: null };
const load = (t, told) => ({ ...UNKNOWN, preemptions: null, t, ...told });

test("what a server counts for all its clients is told for the time shown", () => {
  startAnew();
  assert.deepEqual(served(), []);
  const before = { generation_tokens: 100, first_tokens: 1, ttft_s: 0.5, steps: 10, step_tokens: 100, preemptions: 2 };
  const after = { generation_tokens: 300, first_tokens: 5, ttft_s: 0.9, steps: 30, step_tokens: 900, preemptions: 3 };
  take([{
    loads: [load(1000, { running: 3, ...before }), load(3000, { running: 3, ...after, awake: 0, deferred: 2 })],
  }]);
  assert.deepEqual(served(), [
    ["All clients", "100 tok/s · TTFT 100 ms"],
    ["Their steps", "10/s of 40 tokens"],
    ["Their requests", "1 preemption · 2 wait for something other than a place · it sleeps: wake it up"],
  ]);
  assert.deepEqual([preemptedAbout(500, 900), preemptedAbout(1500, 1600), preemptedAbout(3100, 3200)], [0, 1, 0]);
});

test("requests of other clients are work as well", () => {
  const now = 60_000;
  startAnew({ now });
  take([{ loads: [load(1000, { running: 0 }), load(6000, { running: 2 }), load(9000, { running: 2 })] }], { now });
  assert.deepEqual([time.cuts, [7500, 9000, 30_000].map(time.x)], [[], [7500, 9000, 9700]]);
});
