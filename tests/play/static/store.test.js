import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { apply } from "../../../roseplay/play/static/shared/reduce.js";
import { store } from "../../../roseplay/play/static/shared/store.js";
import { startAnew, step, submitted, take, tellStory } from "./traffic.js";

const { steps, tokens } = store;

test("a request is put together from its events", () => {
  tellStory();
  const { lane, submitted, first, ttft_ms, finished, reason, tokens, computed } = store.requests.get(1);
  assert.deepEqual([lane, submitted, first, ttft_ms, finished, reason, tokens, computed], [
    2,
    0,
    12,
    12,
    20,
    "stop",
    2,
    8,
  ]);
  const other = store.requests.get(2);
  assert.deepEqual([other.finished, other.burst, other.preempted, other.resumed], [null, 5, [12], [20]]);
  assert.deepEqual([[...store.open], [...store.bursts.keys()]], [[2], [5]]);
});

test("a snapshot counts the preemptions of the frames that come with it, too", () => {
  const requests = [[1, { preemptions: 3, tenant: 2, preempted: 5 }], [2, {}]];
  const frames = [{ steps: [step(1, 2, 12, [], [1, 2])] }];
  apply(/** @type {any} */ ({ boot_id: "late", next: 7, now: 20, reset: true, frames, snapshot: { requests } }));
  take([{ steps: [step(2, 12, 20, [], [1])] }], { boot: "late" });
  const [one, two] = [1, 2].map((rid) => store.requests.get(rid));
  assert.deepEqual([one.preemptions, two.preemptions, one.tenant], [4, 1, 2]);
  assert.deepEqual(one.preempted, [2, 12], "what only the page knows is not the server's to tell");
});

test("steps, tokens and knobs are kept", () => {
  tellStory();
  assert.deepEqual([steps.size, tokens.size, store.marks.length, store.cursor], [3, 2, 1, 7]);
  assert.deepEqual(store.knobs, { max_batch_size: 2 });
  const slot = store.stepRow(2) & steps.mask;
  const row = ["t0", "t1", "decode_tokens", "blocks_free", "preempted"].map((name) => steps[name][slot]);
  assert.deepEqual(row, [12, 20, 1, 4, [2]]);
  assert.equal(store.stepRow(99), -1);
  const parts = store.entriesOf(store.stepRow(1) & steps.mask);
  assert.deepEqual(parts.map(({ rid, prompt_tokens }) => [rid, prompt_tokens]), [[1, 8], [2, 4]]);
  assert.deepEqual([...tokens.itl_ms.slice(0, 2)], [NaN, 8]);
});

test("rows are read by the names of their columns", () => {
  startAnew({
    columns: {
      steps: ["entries", "colour", "t1", "t0", "step_id", "running"],
      entries: ["decode_tokens", "request_id"],
      tokens: ["itl_ms", "step_id", "request_id", "t"],
    },
  });
  take([{ steps: [[[[1, 9]], "red", 20, 10, 4, 3]], tokens: [[null, 4, 9, 20]] }]);
  const read = ["step_id", "t0", "t1", "running", "blocks_free", "replayed", "preempted"];
  assert.deepEqual(read.map((name) => steps[name][0]), [4, 10, 20, 3, 0, null, null]);
  assert.deepEqual(store.entriesOf(0), [{ rid: 9, prompt_tokens: 0, decode_tokens: 1 }]);
  assert.deepEqual([tokens.request_id[0], tokens.t[0], tokens.step_id[0]], [9, 20, 4]);
  assert.ok(!("colour" in steps));
});

test("a new server empties the store", () => {
  tellStory();
  take([], { boot: "two" });
  assert.deepEqual([steps.size, store.requests.size, store.info, store.bootId], [0, 0, null, "two"]);
});

test("rings forget their oldest rows", () => {
  startAnew();
  const count = steps.capacity + 10;
  take([{ steps: Array.from({ length: count }, (_, n) => step(n, n, n + 0.5)) }]);
  assert.deepEqual([steps.size, store.stepRow(9), store.stepRow(10)], [count - 10, -1, 10]);
});

test("requests and bursts that no view can reach are dropped", () => {
  startAnew();
  for (let burst = 1, rid = 1; burst <= 40; burst++) {
    const t = 7000 * burst, rids = Array.from({ length: 32 }, () => rid++);
    const steps = Array.from({ length: 60 }, (_, n) => step(60 * burst + n, t + 100 * n, t + 100 * (n + 1)));
    const requests = rids.flatMap((one) => [submitted(one, t, { burst }), [one, "first", t + 100, { ttft_ms: 100 }]]);
    const ends = rids.map((one) => [one, "finished", t + 6000, { reason: "length", tokens: 60 }]);
    take([{
      steps,
      tokens: steps.flatMap((_, n) => rids.map((one) => [one, t + 100 * (n + 1), n ? 100 : null, 60 * burst + n])),
      requests: [...requests, ...ends],
    }], { now: t + 6000 });
  }
  assert.equal(tokens.size, tokens.capacity);
  assert.ok(store.requests.size < 1000, String(store.requests.size));
  assert.ok(store.bursts.size <= 4);
});
