import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import * as box from "../../../roseplay/play/static/stage/box.js";
import { Pace, promptTokens, sceneOf, waitingAt } from "../../../roseplay/play/static/stage/scene.js";
import { choose, shown } from "../../../roseplay/play/static/stage/shown.js";
import { demos } from "../../../roseplay/play/static/live/demos.js";
import { view } from "../../../roseplay/play/static/live/view.js";
import { store } from "../../../roseplay/play/static/shared/store.js";
import { startAnew, step, submitted, take } from "./traffic.js";

const part = (rid, prompt, decode = 0) => ({ rid, lane: null, prompt, decode });
const area = { x0: 0, x1: 300, y0: 0, y1: 200 };

test("each token of a prompt has a cell, or shares it where there are too many", () => {
  for (const tokens of [1, 64, 500, 716, 8192, 100000]) {
    const { cells } = box.layOutBox(area, 32, tokens), filled = box.cellsOf([part(1, tokens)], cells.per);
    assert.equal(filled.length, Math.ceil(tokens / cells.per));
    const corners = filled.map((_, i) => box.cellAt(cells, i));
    assert.ok(corners.every(([x, y]) => x >= 0 && x + cells.pitch <= 300 && y >= cells.y0 && y + cells.pitch <= 200));
  }
  assert.equal(box.layOutBox(area, 32, 64).cells.per, 1);
});

test("cells belong to the requests in turn, and those of few tokens share one", () => {
  const parts = [part(1, 3), part(2, 0, 1), part(3, 2), part(4, 4)];
  assert.deepEqual(box.cellsOf(parts, 1).map(({ rid }) => rid), [1, 1, 1, 3, 3, 4, 4, 4, 4]);
  assert.deepEqual(box.cellsOf(parts, 4).map(({ rid }) => rid), [1, 3, 4]);
  assert.equal(promptTokens(/** @type {any} */ ({ parts })), 9);
  assert.deepEqual(box.slotsOf(parts).map(({ rid }) => rid), [2, 1, 3, 4], "answers come first");
});

test("a point and the cell or slot that is there", () => {
  const { cells, slots } = box.layOutBox(area, 200, 500);
  for (const i of [0, 7, cells.columns, 2 * cells.columns + 3]) {
    const [x, y] = box.cellAt(cells, i);
    assert.equal(box.cellUnder(cells, x + 2, y + 2), i);
  }
  for (const i of [0, 7, slots.columns + 1]) {
    const [x, y] = box.slotAt(slots, i);
    assert.equal(box.slotUnder(slots, x + 2, y + 2), i);
  }
  assert.ok(box.slotAt(slots, 199)[1] + slots.pitch <= cells.y0);
});

test("the line of a budget lies above exactly its tokens", () => {
  const { cells } = box.layOutBox(area, 32, 500), { x0, x1, y1, columns, pitch } = cells;
  assert.deepEqual(box.limitPath(cells, 2 * columns), [[x0, y1 - 2 * pitch], [x1, y1 - 2 * pitch]]);
  const [from, turn, low, to] = box.limitPath(cells, columns + 5);
  assert.deepEqual([from[1], turn[0], low[1], to[1]], [y1 - 2 * pitch, x0 + 5 * pitch, y1 - pitch, y1 - pitch]);
});

test("of the steps that have ended, the slowest is shown, for as long as it took", () => {
  const pace = new Pace(), steps = [{ step: 0, took: 8 }, { step: 1, took: 350 }, { step: 2, took: 9 }];
  assert.equal(pace.next(() => steps, 1000)?.step, 1);
  assert.equal(pace.next(() => [...steps, { step: 3, took: 400 }], 1300), null, "it stays");
  assert.equal(pace.next(() => [...steps, { step: 3, took: 10 }], 1360)?.step, 3);
  assert.equal(pace.next(() => [{ step: 4, took: 11 }], 1370)?.step, 4, "short ones go at once");
  assert.equal(pace.next(() => steps, 1380), null, "none is shown twice");
});

test("a scene has what its step computed, and what waited when it ended", () => {
  startAnew({ boot: "scene", now: 1500, knobs: {}, info: { num_blocks: 9 } });
  const submitted = (rid, t, about = {}) => [rid, "submitted", t, { kind: "burst", prompt_tokens: 10 * rid, ...about }];
  const requests = [
    submitted(1, 1000, { kind: "lane", lane: 2 }),
    submitted(2, 1001),
    submitted(3, 1050),
    submitted(4, 1400),
  ];
  const events = [...requests, [1, "scheduled", 1005, {}], [2, "scheduled", 1200, {}], [3, "finished", 1300, {
    reason: "abort",
  }]];
  take([{
    steps: [step(0, 1100, 1150, [[1, 7, 0]])],
    tokens: [],
    requests: events,
    knobs: [],
    blocks: [[1, 1, 1, 0, 2], [3, 2, 1, 1]],
  }], {
    boot: "scene",
    now: 1500,
  });
  const { parts, waiting, kv, t0, t1 } = sceneOf(store.stepRow(0) & store.steps.mask);
  assert.deepEqual([t0, t1, parts], [1100, 1150, [{ rid: 1, lane: 2, prompt: 7, decode: 0 }]]);
  assert.deepEqual(waiting.map(({ rid, tokens }) => [rid, tokens]), [[2, 20], [3, 30]]);
  assert.deepEqual(waitingAt(1450).map(({ rid }) => rid), [4]);
  assert.deepEqual(kv.map(({ count, block }) => [count, block]), [[1, 3], [2, 1], [5, 4]], "shared, held, free");
});

test("at rest the slowest step of what the charts show is shown, or the one that a demo rings", () => {
  const rings = { boot: "rings", now: 60000 };
  startAnew(rings);
  const steps = [10, 400, 900, 20].map((took, i) => step(i, 1000 * i, 1000 * i + took, [[1, 0, 1]]));
  take([{ steps }], rings);
  const shownNow = () => choose() && shown.scene?.step;
  assert.equal(shownNow(), 2);
  view.set(0, 1500);
  assert.equal(shownNow(), 1);
  demos.caption = /** @type {any} */ ({ rings: [{ of: "rows" }, { of: "step", step: 3 }] });
  assert.equal(shownNow(), 3);
  view.clear();
  take([{ requests: [submitted(7, 900, { burst: 3 }), [7, "finished", 1500, { reason: "length" }]] }], rings);
  demos.caption = /** @type {any} */ ({ rings: [{ of: "rows", burst: 3 }] });
  assert.equal(shownNow(), 1, "of the rows");
  demos.caption = null;
  take([{ knobs: [[2950, 3, { prefill_max_tokens: [null, 64] }]] }], rings);
  assert.equal(shownNow(), 3, "under the latest settings");
});
