import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { stateText } from "../../../roseplay/play/static/lanes/lanestate.js";
import { store } from "../../../roseplay/play/static/shared/store.js";
import { lineText, partsText } from "../../../roseplay/play/static/shared/waits.js";
import { startAnew, step, take } from "./traffic.js";

const submitted = (rid) => [rid, "submitted", 1000 + rid, { kind: "burst", prompt_tokens: 8 }];
const scheduled = (rid) => [rid, "scheduled", 1100, { queue_ms: 9 }];
const frame = (...requests) => ({ steps: [], tokens: [], requests, knobs: [] });

test("requests that wait have their place in line", () => {
  startAnew({ boot: "line", now: 1200, knobs: {}, info: {} });
  take([frame(submitted(1), submitted(2), submitted(3), scheduled(1))], { boot: "line", now: 1200 });
  assert.deepEqual([1, 2, 3, 99].map(lineText), ["", "1st in line", "2nd in line", ""]);
  take([frame(scheduled(2), [3, "finished", 1300, { reason: "abort" }], submitted(4))], { boot: "line", now: 1400 });
  assert.deepEqual([2, 3, 4].map(lineText), ["", "", "1st in line"]);
  const queued = (rid) => stateText(/** @type {any} */ ({ rid, state: "queued", tokens: 0 }));
  assert.deepEqual([4, 2].map(queued), ["queued · 1st in line", "queued"]);
});

test("a preempted request keeps its place", () => {
  startAnew({ boot: "again", now: 1200, knobs: {}, info: {} });
  const events = [submitted(1), submitted(2), scheduled(1)];
  take([{ ...frame(...events), steps: [step(0, 1100, 1110, [], [1])] }], { boot: "again", now: 1200 });
  assert.deepEqual([1, 2].map(lineText), ["1st in line", "2nd in line"]);
});

test("a preempted request is ahead of older ones that it overtook under another policy", () => {
  startAnew({ boot: "overtaken", now: 1200, knobs: {}, info: {} });
  const events = [submitted(1), submitted(2), scheduled(2)];
  take([{ ...frame(...events), steps: [step(0, 1100, 1110, [], [2])] }], { boot: "overtaken", now: 1200 });
  assert.deepEqual([1, 2].map(lineText), ["2nd in line", "1st in line"]);
});

test("under a scheduling policy the order in line is not known", () => {
  startAnew({ boot: "fair", now: 1200, knobs: { scheduling_policy: "fair" }, info: {} });
  take([frame(submitted(1), submitted(2))], { boot: "fair", now: 1200 });
  assert.deepEqual([1, 2].map(lineText), ["", ""]);
});

test("the parts of a time to first token", () => {
  startAnew({ boot: "parts", now: 1200, knobs: {}, info: {} });
  const first = [1, "first", 1200, { ttft_ms: 100, ttft_parts: [12.4, 0, 0.2, 87.4] }];
  take([frame(submitted(1), scheduled(1), first)], { boot: "parts", now: 1200 });
  assert.equal(partsText(store.requests.get(1)), "12 in line · 87 computing");
});
