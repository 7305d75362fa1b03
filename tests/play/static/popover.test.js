import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";

/** As much of an element as a popover needs. */
class FakeElement {
  /** @type {any[]} */
  childNodes = [];
  /** @type {any} */
  parent = null;
  dataset = {};
  style = { setProperty() {} };
  textContent = "";
  hidden = false;
  append(...nodes) {
    for (const node of nodes) this.insertBefore(node, null);
  }
  insertBefore(node, before) {
    if (typeof node === "string") node = Object.assign(new FakeElement(), { textContent: node });
    node.remove?.();
    node.parent = this;
    this.childNodes.splice(before ? this.childNodes.indexOf(before) : this.childNodes.length, 0, node);
  }
  remove() {
    this.parent?.childNodes.splice(this.parent.childNodes.indexOf(this), 1);
  }
  querySelector() {
    return null;
  }
  setAttribute() {}
  contains() {
    return false;
  }
}

const timers = [];
Object.assign(globalThis, { innerWidth: 1440, innerHeight: 900, setTimeout: (does) => timers.push(does) });
Object.assign(document, {
  createElement: () => new FakeElement(),
  createElementNS: () => new FakeElement(),
});
document.body.append = () => {};
const { popover } = await import("../../../roseplay/play/static/shared/popover.js");
const { emit } = await import("../../../roseplay/play/static/shared/events.js");

const node = (textContent) => /** @type {any} */ (Object.assign(new FakeElement(), { textContent }));
const settled = () => new Promise((done) => setImmediate(done));

test("what changes is filled again, and a button in it stays where it is", async () => {
  let count = 1;
  const button = node("press"), filled = [];
  popover.open({
    ...{ name: "a", title: "A", x: 1, y: 1, news: () => String(count) },
    fill: () => (filled.push(node(String(count))), [filled[filled.length - 1], button]),
  });
  const { parent } = button;
  for (const now of [1, 2, 2]) {
    count = now;
    emit("frame");
    await settled();
  }
  assert.deepEqual(parent.childNodes.map((one) => one.textContent), ["2", "press"]);
  assert.equal(filled.length, 2, "not again without news");
  popover.close();
});

test("the server is asked again when there is news, and a late answer for another popover is dropped", async () => {
  let state = "old", asked = 0, answer = /** @type {any} */ (null);
  const shown = node("waiting");
  const spec = { name: "b", title: "B", x: 1, y: 1, fill: () => [shown], news: () => state };
  const asks = () => (asked++, new Promise((resolve, reject) => (answer = { resolve, reject })));
  popover.open({ ...spec, asks });
  const { parent } = shown;
  const words = () => parent.childNodes.map((one) => one.textContent || one.childNodes[0]?.textContent);
  state = "new"; // while the server answers for the old one
  answer.resolve([node("of the old")]);
  await settled();
  assert.deepEqual(words(), ["of the old"]);
  emit("frame");
  await settled();
  assert.equal(timers.length, 1, "it has changed since it was asked for");
  timers.pop()();
  answer.reject(Object.assign(new Error("The engine is busy."), { status: 503 }));
  await settled();
  assert.deepEqual([words(), asked, timers.length], [["The engine is busy."], 2, 1]);
  popover.close();
  popover.open({ ...spec, asks });
  const late = answer;
  popover.open({ ...spec, name: "c", fill: () => [node("another")] });
  late.resolve([node("late")]);
  await settled();
  assert.deepEqual(words(), ["another"]);
  popover.close();
});
