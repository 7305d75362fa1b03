import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { asked, whyNot } from "../../../roseplay/play/static/live/comparable.js";
import { store } from "../../../roseplay/play/static/shared/store.js";
import { startAnew, step, submitted, take } from "./traffic.js";

const BURST = { size: 20, kind: "mix", answer: 64, prompt: 1000, others: 4, saved: 0.1, sharing: "on on", slow: "1" };

test("bursts that ask the same can be compared", () => {
  const close = { ...BURST, prompt: 1090, others: 3, saved: 0.19 };
  for (const other of [BURST, close, { ...BURST, saved: null }]) {
    assert.equal(whyNot(other, BURST), "");
    assert.equal(whyNot(BURST, other), "");
  }
  assert.equal(whyNot({ ...BURST, saved: 0.9, sharing: "off on" }, BURST), "", "a setting made the difference");
});

for (
  const [other, reason] of /** @type {[object, string][]} */ ([
    [{ size: 12 }, "it had 12 requests"],
    [{ answer: 32 }, "its answers had a different length"],
    [{ kind: undefined, answer: undefined }, "what it asked for is no longer known"],
    [{ kind: "unique" }, "it had different prompts"],
    [{ prompt: 1101 }, "it had different prompts"],
    [{ prompt: 899 }, "it had different prompts"],
    [{ slow: "5" }, "slow motion was different or changed"],
    [{ others: 2 }, "2 other requests ran at the same time"],
    [{ others: 6 }, "6 other requests ran at the same time"],
    [{ saved: 0.21 }, "a different share of its prompts was cached"],
  ])
) {
  test(`a burst with ${JSON.stringify(other)} cannot be compared`, () => {
    assert.equal(whyNot({ ...BURST, ...other }, BURST), reason);
  });
}

test("what was measured partly in slow motion is compared with nothing", () => {
  assert.equal(whyNot({ ...BURST, slow: "1,5" }, { ...BURST, slow: "1,5" }), "slow motion was different or changed");
});

const KNOBS = { max_batch_size: 4, slow_motion: 1, prefix_cache: true, same_step_sharing: false };
const about = (burst, more = {}) => ({ burst, size: 2, label: "mix", answer: 16, ...more });
const first = (rid, t, ttft) => [rid, "first", t, { ttft_ms: ttft }];

test("what a burst asked is told by its requests and the server's figures", () => {
  startAnew({ boot: "asked", knobs: KNOBS, requests: [], burst: null });
  const lane = [submitted(1, 0, { lane: 1 }), first(1, 5, 5)], ended = [1, "finished", 150, { reason: "stop" }];
  take([{ requests: lane }], { boot: "asked" });
  const requests = [submitted(2, 100, { burst: 7 }), submitted(3, 100, { burst: 7 }), submitted(4, 101)];
  take([{ requests, burst: about(7) }], { boot: "asked" });
  const burst = store.bursts.get(7);
  const expected = { size: 2, kind: "mix", answer: 16, prompt: 16, others: 1, sharing: "true false", slow: "1" };
  assert.deepEqual(asked(burst), { ...expected, saved: null }, "nothing is known of the cache yet");
  const steps = [step(1, 100, 130, [[2, 4, 0, 8, 8, 4, 0], [3, 8, 0, 8, 8, 0, 0]])];
  take([{ steps, requests: [first(2, 130, 30), first(3, 130, 30), ended] }], { boot: "asked" });
  assert.deepEqual(asked(burst), { ...expected, saved: 0.25 });
  store.requests.delete(1);
  assert.equal(asked(burst).others, 1, "it is remembered");
  take([{ knobs: [[131, 1, { slow_motion: [1, 5], prefix_cache: [true, false] }]] }], { boot: "asked" });
  assert.deepEqual(asked(burst), { ...expected, saved: 0.25 }, "a later change is none of it");
});

test("other requests are counted when it arrives", () => {
  startAnew({ boot: "early", knobs: KNOBS, burst: null });
  take([{ requests: [submitted(1, 0, { lane: 1 }), submitted(2, 100, { burst: 7 })], burst: about(7) }], {
    boot: "early",
  });
  store.requests.delete(1);
  assert.equal(asked(store.bursts.get(7)).others, 1);
});

test("slow motion that begins between its arrival and its last first token counts", () => {
  startAnew({ boot: "slowed", knobs: KNOBS, burst: null });
  const requests = [submitted(2, 100, { burst: 7 }), submitted(3, 100, { burst: 7 }), first(2, 110, 10)];
  const knobs = [[120, 1, { slow_motion: [1, 5] }]];
  take([{ requests: [...requests, first(3, 130, 30)], knobs, burst: about(7) }], { boot: "slowed" });
  assert.equal(asked(store.bursts.get(7)).slow, "1,5");
});

test("the newest burst of a snapshot has its figures", () => {
  const requests = [[2, { burst: 7, submitted: 100, prompt_tokens: 8 }], [3, { burst: 6, submitted: 90 }]];
  startAnew({ boot: "again", knobs: KNOBS, requests, burst: about(7) });
  assert.equal(asked(store.bursts.get(7)).answer, 16);
  assert.equal(asked(store.bursts.get(6)).answer, undefined);
});

test("requests that were stopped as it arrived are none of the others", () => {
  startAnew({ boot: "stopped", knobs: KNOBS, burst: null });
  const requests = [submitted(1, 0, { lane: 1 }), submitted(2, 100, { burst: 7 }), [1, "finished", 101, {
    reason: "abort",
  }]];
  take([{ requests, burst: about(7) }], { boot: "stopped" });
  assert.equal(asked(store.bursts.get(7)).others, 0);
});
