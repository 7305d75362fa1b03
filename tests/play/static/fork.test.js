import { given } from "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { trafficFrom } from "../../../roseplay/play/static/replay/fork.js";

const submitted = (rid, t, about = {}) => [rid, "submitted", t, { prompt_tokens: 8, ...about }];
const token = (rid, t) => given.columns.tokens.map((name) => ({ request_id: rid, t })[name] ?? 0);

/** A recording of these frames, as far as a fork reads it. */
function recorded(snapshot, ...frames) {
  const whole = frames.map((frame) => ({ requests: [], tokens: [], ...frame }));
  return /** @type {any} */ ({
    time: (ms) => ms,
    columns: given.columns,
    header: { snapshot: { requests: [], ...snapshot } },
    count: whole.length,
    frame: (i) => whole[i],
  });
}

const lines = (recording, ms) => trafficFrom(recording, ms).split("\n").filter(Boolean).map((line) => JSON.parse(line));

test("tenants and priorities go along: by name where it is known, otherwise by number", () => {
  const recording = recorded(
    { requests: [[1, { prompt_tokens: 5, tokens: 2, tenant: 1, priority: 0 }]], tenants: [[1, "gold"]] },
    {
      requests: [submitted(2, 50, { tenant: 2, priority: -3 }), submitted(3, 60, { tenant: 7 }), submitted(4, 70)],
      tenants: [[2, "silver"]],
    },
    { tokens: [1, 2, 3, 4].map((rid) => token(rid, 200)) },
  );
  assert.deepEqual(lines(recording, 100), [
    { arrival_s: 0, prompt_tokens: 7, answer_tokens: 1, tenant: "gold" },
    { arrival_s: 0, prompt_tokens: 8, answer_tokens: 1, tenant: "silver", priority: -3 },
    { arrival_s: 0, prompt_tokens: 8, answer_tokens: 1, tenant: "tenant 7" },
    { arrival_s: 0, prompt_tokens: 8, answer_tokens: 1 },
  ]);
});

test("what has ended by then is left out, and what comes later keeps its time", () => {
  const recording = recorded(
    { requests: [[1, { prompt_tokens: 5, tokens: 0 }]] },
    { requests: [submitted(2, 300)], tokens: [token(1, 10)] },
    { requests: [[1, "finished", 50, {}]], tokens: [token(2, 400)] },
  );
  assert.deepEqual(lines(recording, 100), [{ arrival_s: 0.2, prompt_tokens: 8, answer_tokens: 1 }]);
});
