import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { flagWords, knobMarks } from "../../../roseplay/play/static/live/knobmarks.js";
import { randomNumbers, startAnew, take } from "./traffic.js";

const WIDTH = 518;
const place = (marks, taken = []) => flagWords(marks, (/** @type {any} */ mark) => mark.at, 0, WIDTH, taken);

test("a slider's drag is one mark", () => {
  startAnew();
  const drag = [0, 1, 2, 3].map((n) => [100 + 50 * n, 1, { max_batch_size: [32 - n, 31 - n] }]);
  const last = { prefill_max_tokens: [null, 256], scheduling_policy: ["fcfs", "lpm"] };
  take([{ knobs: [...drag, [5000, 9, last]] }]);
  const texts = knobMarks().map((mark) => mark.text);
  assert.deepEqual(texts, [
    "max batch 32 → 28",
    "budget ∞ → 256, policy first come → longest prefix",
  ]);
});

test("words beside marks collide neither with one another nor with another mark", () => {
  const random = randomNumbers(3), upTo = (most) => Math.floor(random() * most);
  for (let run = 0; run < 60; run++) {
    const places = Array.from({ length: 1 + upTo(6) }, () => random() * 470).sort((a, b) => a - b);
    const newest = places[places.length - 1];
    const placed = place(places.map((at) => ({ text: "x".repeat(5 + upTo(20)), at })));
    const spans = placed.map(({ x, left, mark }) => {
      const long = 6 + 6.1 * mark.text.length;
      return { x, from: left ? x - long : x, to: left ? x : x + long };
    }).sort((a, b) => a.from - b.from);
    spans.forEach(({ x, from, to }, i) => {
      assert.ok(from >= 0 && to <= WIDTH);
      assert.ok(i === 0 || spans[i - 1].to <= from, "words over words");
      const hit = places.some((other) => other !== x && other > from && other < to);
      assert.ok(x === newest || !hit, "words over the mark of another change");
    });
    assert.ok(placed.some(({ x }) => x === newest), "the newest keeps its words");
  }
});

test("words do not fit where something else is drawn", () => {
  const lone = [{ text: "budget 512 → 256", at: 200 }];
  assert.equal(place(lone).length, 1);
  assert.deepEqual(place(lone, [[150, 360]]), []);
});
