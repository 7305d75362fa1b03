import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { factors, settingAt, slowed, slowedFirst, slowedIn } from "../../../roseplay/play/static/shared/past.js";
import { store, tokenOf } from "../../../roseplay/play/static/shared/store.js";
import { time } from "../../../roseplay/play/static/shared/time.js";
import { startAnew, step, submitted, take } from "./traffic.js";

let boots = 0;

/** A run in which slow motion is 1, from 100 on 5, from 200 on 2, and from 300 on 1 again; it has the given frame. */
function run(frame = {}) {
  const boot = `past-${++boots}`, changes = [[100, 1, 5], [200, 5, 2], [300, 2, 1]];
  const knobs = changes.map(([t, before, after]) => [t, 0, { slow_motion: [before, after] }]);
  startAnew({ boot, knobs: { slow_motion: 1, max_batch_size: 4 } });
  take([{ knobs: [...knobs, [250, 0, { max_batch_size: [4, 8] }]], ...frame }], { boot });
}

test("a setting at an earlier time", () => {
  run();
  assert.deepEqual([0, 99, 100, 199, 200, 300, 999].map((t) => settingAt("slow_motion", t)), [1, 1, 5, 5, 2, 1, 1]);
  assert.deepEqual([249, 250].map((t) => settingAt("max_batch_size", t)), [4, 8]);
});

test("what follows a time says in which slow motion it was measured", () => {
  run();
  const cases = /** @type {[number, number, string][]} */ ([
    [0, 99, ""],
    [0, 100, ""],
    [0, 101, " partly at ×5"],
    [100, 200, " at ×5"],
    [100, 201, " partly at ×2 and ×5"],
    [0, 999, " partly at ×2 and ×5"],
    [200, 250, " at ×2"],
    [250, 301, " partly at ×2"],
    [300, Infinity, ""],
  ]);
  for (const [from, to, expected] of cases) assert.equal(slowed(from, to), expected, `${from} to ${to}`);
  assert.equal(slowed(150), " at ×5");
  assert.deepEqual(factors(0, 999), [1, 2, 5]);
});

test("another server has no slow motion", () => {
  startAnew({ boot: "other", knobs: {} });
  assert.equal(slowed(0, 999), "");
});

test("first tokens were measured from the first submission to the last of them", () => {
  const requests = [submitted(1, 90), submitted(2, 110), [1, "first", 95, { ttft_ms: 5 }]];
  run({ requests: [...requests, [2, "first", 150, { ttft_ms: 40 }]] });
  const [one, two] = [1, 2].map((rid) => store.requests.get(rid));
  assert.deepEqual([[one], [two], [one, two], []].map(slowedFirst), ["", " at ×5", " partly at ×5", ""]);
});

test("a window shows what was measured in it, not what was set before any work or after it", () => {
  run({ steps: [step(1, 110, 120), step(2, 120, 190)] });
  assert.equal(slowedIn({ x0: time.x(0), x1: time.x(200) }), " at ×5", "there was no work before");
  assert.equal(slowedIn({ x0: time.x(150), x1: time.x(260) }), " partly at ×2 and ×5");
  run();
  assert.equal(slowedIn({ x0: 0, x1: 999 }), "", "without steps there is nothing to mark");
});

test("the token of a step is none of a later one", () => {
  run({ steps: [step(1, 110, 120), step(2, 120, 190)], tokens: [[7, 120, null, 1], [8, 190, 70, 2], [7, 190, 70, 2]] });
  assert.deepEqual(tokenOf(7, 2), { t: 190, itl: 70, usual: NaN, cause: null });
  assert.equal(tokenOf(8, 1), undefined);
});
