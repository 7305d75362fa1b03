import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { ask, sentence } from "../../../roseplay/play/static/shared/ask.js";

/** Answers the next request; returns what was asked for. */
function answering(body, status = 200) {
  const asked = {};
  globalThis.fetch = /** @type {any} */ ((address, how) => {
    Object.assign(asked, { address, ...how });
    return body instanceof Error ? Promise.reject(body) : Promise.resolve(new Response(body, { status }));
  });
  return asked;
}

test("an object is posted as JSON, a file as it is, and the rest is a query", async () => {
  const get = answering("[1]");
  assert.deepEqual(await ask("/x", { query: { tab: "a&b", n: 2 } }), [1]);
  assert.deepEqual([get.address, get.method, get.body], ["/ui/x?tab=a%26b&n=2", "GET", undefined]);
  const post = answering("{}");
  await ask("/x", { body: { a: 1 } });
  assert.deepEqual([post.method, post.body, post.headers], ["POST", '{"a":1}', { "Content-Type": "application/json" }]);
  const file = new File(["words"], "name"), sent = answering("a,b");
  assert.equal(await ask("/x", { body: file, text: true }), "a,b");
  assert.deepEqual([sent.method, sent.body, sent.headers], ["POST", file, undefined]);
});

test("a refusal has the server's reason and status, and a missing or broken answer has status 0", async () => {
  const refused = (how = {}) => ask("/x", how).catch(({ message, status }) => [message, status]);
  answering('{"detail": "no such file"}', 404);
  assert.deepEqual(await refused(), ["No such file.", 404]);
  assert.deepEqual(await (answering("<p>", 502), refused({ text: true })), ["The server answered 502.", 502]);
  for (const body of ["not json", "null", new TypeError("gone")]) {
    answering(body);
    assert.deepEqual(await refused(), ["The server does not answer.", 0]);
  }
  assert.match((await refused({ body: new File([], "name") }))[0], /file can no longer be read/);
  assert.deepEqual(["is it?", "max_batch_size is 0"].map(sentence), ["Is it?", "max_batch_size is 0."]);
});
