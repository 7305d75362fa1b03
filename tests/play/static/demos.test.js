import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { demos } from "../../../roseplay/play/static/live/demos.js";
import { emit } from "../../../roseplay/play/static/shared/events.js";

const CAPTION = { name: "budget", scene: 6, scenes: 7, caption: [["It is shorter.", ""]], rings: [] };
const own = { own: true, left_s: 1 }, others = { own: false, left_s: 9 };

/** A poll's reply with frames that have these captions; `demo` is what the server says about a demo at that time. */
const reply = (demo, ...captions) => emit("frame", { frames: captions.map((one) => ({ demo: one })), demo });

test("the last caption stands until the frame with which the demo is over", () => {
  reply(own, CAPTION);
  assert.ok(demos.own && demos.caption);
  reply(null, null); // it has ended on the server, but this reply has no frame that says so yet
  assert.deepEqual(demos.caption?.caption, CAPTION.caption);
  reply(null, { over: true });
  assert.equal(demos.caption, null);
  assert.equal(demos.own, false);
});

test("a demo of another tab has no captions here", () => {
  reply(others, CAPTION);
  assert.equal(demos.caption, null);
  assert.equal(demos.elsewhere, 9);
  reply(null, CAPTION, { over: true });
  assert.equal(demos.caption, null);
  reply(own, CAPTION);
  reply(others, CAPTION); // this tab's has ended, and another tab has begun one at once
  assert.equal(demos.caption, null);
});

test("the last caption of a demo that compared two bursts opens their picture", async () => {
  const { store } = await import("../../../roseplay/play/static/shared/store.js");
  await import("../../../roseplay/play/static/live/pair.js");
  const open = () => JSON.parse(sessionStorage.getItem("roseplay-pair")).open;
  store.info = /** @type {any} */ ({ model: "tiny-chat", device: "cpu" });
  emit("frame", { frames: [{ pair: { about: "20 prompts", figures: [] } }], demo: own });
  emit("frame", { frames: [{ requests: [[7, "submitted", 1, {}]] }], demo: own });
  assert.ok(!open(), "something else streams");
  reply(own, { ...CAPTION, scene: 5 });
  assert.ok(!open());
  reply(own, CAPTION);
  assert.ok(open());
  reply(own, { ...CAPTION, scene: 0 });
  assert.equal(sessionStorage.getItem("roseplay-pair"), null, "the next demo takes it away");
});
