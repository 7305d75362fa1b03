import { written } from "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { blocksOf, helps, sentenceOf } from "../../../roseplay/play/static/live/cachewords.js";
import { time } from "../../../roseplay/play/static/shared/time.js";
import { startAnew, step, take } from "./traffic.js";

startAnew({ now: 3530 });
take([{ steps: [step(41, 1000, 1020)] }], { now: 3530 });
time.follow(() => 3520);

const NOTHING = { request: null, step: null, position: null };
const about = (prompt, cached, miss) => ({ prompt, cached, block: 16, miss: miss && { ...NOTHING, ...miss } });

function sentence(prompt, cached, miss) {
  const parts = /** @type {any[]} */ (sentenceOf(about(prompt, cached, miss)));
  return parts.map((part) => (typeof part === "string" ? part : part.bold ?? `#${part.rid}`)).join("");
}

const reasons = /** @type {[Record<string, any>, string][]} */ ([
  [{ reason: "differs", position: 51 }, "it differs from what is cached at token 52."],
  [{ reason: "differs" }, "no cached block is the same as its 4th block."],
  [{ reason: "short" }, "its last 35 tokens do not fill a block of 16."],
  [{ reason: "unfilled", position: 50 }, "a block of 16 tokens was never filled."],
  [{ reason: "computing", request: 5 }, "it was still being computed by request #5."],
  [{ reason: "evicted", step: 41 }, "its blocks were evicted for other requests 2.5 s ago."],
  [{ reason: "cleared", step: 41 }, "the cache was cleared 2.5 s ago."],
  [{ reason: "evicted", step: 11 }, "its blocks were evicted for other requests 30 steps ago."],
  [{ reason: "evicted" }, "its blocks were evicted for other requests."],
  [{ reason: "cleared" }, "the cache was cleared."],
  [{ reason: "off" }, "the prefix cache was off."],
  [
    { reason: "logprobs" },
    "log-probabilities of its tokens were requested, which only computing the tokens can give.",
  ],
  [{ reason: "ends" }, "what is cached ends at token 48."],
  [{ reason: "new" }, "nothing in the cache begins like it."],
]);

test("each reason is a sentence, and something helps", () => {
  for (const [miss, expected] of reasons) {
    const found = { found: 48, ...miss };
    const there = "48 of 83 tokens were reused. The rest was computed, because ";
    assert.equal(sentence(83, 48, found), there + expected);
    assert.ok(helps(/** @type {any} */ (found)).length > 20);
  }
  assert.equal(helps(null), "");
});

test("no reason of the engine is forgotten", () => {
  assert.ok(written.missReasons.length > 8);
  for (const reason of written.missReasons) {
    assert.doesNotMatch(sentence(83, 48, { reason, found: 48, position: 50, step: 41 }), /not known/, reason);
  }
});

test("other sentences", () => {
  assert.equal(sentence(14, 14, null), "All 14 tokens were reused. None was computed.");
  const logits = "13 of 14 tokens were reused. The last one was computed again";
  assert.ok(sentence(14, 13, { reason: "logits", found: 13 }).startsWith(logits));
  assert.equal(
    sentence(14, 0, { reason: "short", found: 0 }),
    "0 of 14 tokens were reused. The prompt was computed, because it is shorter than a block of 16 tokens.",
  );
  for (const unknown of [null, { reason: "of a later version", found: 0 }]) {
    assert.ok(sentence(14, 3, unknown).endsWith("The rest was computed; the reason is not known."));
  }
});

test("the prompt's blocks", () => {
  const cases = /** @type {[number, number, any, any[]][]} */ ([
    [83, 48, { reason: "differs", found: 48 }, [
      6,
      3,
      3,
      "3 whole blocks of 16 found · the 4th differs inside · 2 after it",
    ]],
    [83, 80, { reason: "short", found: 80 }, [6, 5, 5, "5 whole blocks of 16 found · the 6th is not full"]],
    [83, 0, { reason: "new", found: 0 }, [6, 0, -1, "no whole block of 16 found · 6 computed"]],
    [83, 83, null, [6, 6, -1, "all 6 blocks found"]],
  ]);
  for (const [prompt, cached, miss, expected] of cases) {
    const { total, found, at, words } = blocksOf(about(prompt, cached, miss));
    assert.deepEqual([total, found, at, words], expected);
  }
});
