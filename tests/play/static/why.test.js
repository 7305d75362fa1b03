import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { why } from "../../../roseplay/play/static/live/why.js";
import { startAnew, stepRow, take, tellStory } from "./traffic.js";

let boots = 0;

/** Requests 1 to 4, of which 1 and 2 decode in `quiet` steps of 20 ms; a test adds further events. */
class Story {
  constructor({ quiet = 10, usual = 20 } = {}) {
    this.usual = usual;
    this.t = 1000;
    this.number = 0;
    this.last = new Map();
    this.frame = { steps: [], tokens: [], requests: [], knobs: [] };
    for (const rid of [1, 2, 3, 4]) {
      const about = { kind: rid === 1 ? "lane" : "burst", lane: rid === 1 ? 1 : null, prompt_tokens: 8 };
      this.frame.requests.push([rid, "submitted", 999, about], [rid, "scheduled", 1000, { queue_ms: 1 }]);
    }
    for (let n = 0; n < quiet; n++) this.step();
  }

  /** Add a step and return its number; `prompt` maps requests to numbers of prompt tokens. */
  step(
    {
      ms = 20,
      decode = [1, 2],
      prompt = {},
      copies = 0,
      preempted = [],
      replayed = null,
      swapped = [],
      masks = 0,
      cause,
    } = /** @type {any} */ ({}),
  ) {
    const t0 = this.t, number = this.number++, prompts = Object.entries(prompt);
    this.t += ms;
    const entries = [
      ...decode.map((rid) => [rid, 0, 1, 8, 8, 0, 0]),
      ...prompts.map(([rid, n]) => [Number(rid), n, 0, n, n, 0, 0]),
    ];
    const [swapped_out, swapped_in] = swapped,
      times = { t0, t1: this.t, device_ms: ms - 2, host_ms: 1.5, mask_ms: masks, mask_wait_ms: masks };
    const prompt_tokens = prompts.reduce((sum, [, n]) => sum + n, 0), decode_tokens = decode.length;
    const counts = { prompt_tokens, decode_tokens, cached_tokens: 5, shared_tokens: 6, swapped_out, swapped_in };
    const state = {
      usual_batch: 2,
      running: entries.length,
      blocks_free: 400,
      blocks_active: 48,
      block_copies: copies,
      replayed,
    };
    this.frame.steps.push(stepRow({ step_id: number, ...times, ...counts, ...state, entries, preempted }));
    for (const rid of decode) {
      const itl = this.last.has(rid) ? this.t - this.last.get(rid) : null;
      this.frame.tokens.push([rid, this.t, itl, number, this.usual, cause ?? null]);
      this.last.set(rid, this.t);
    }
    return number;
  }

  why(step, rid = 1) {
    const info = { num_blocks: 449, block_size: 16, kv_bytes_per_token: 250_000 };
    startAnew({ boot: `story-${++boots}`, now: this.t, knobs: { slow_motion: 1 }, info });
    take([this.frame], { boot: `story-${boots}`, now: this.t });
    return why(rid, step);
  }
}

const spaced = (text) => text.replaceAll("\u00a0", " ");
const plain = (part) => spaced(typeof part === "string" ? part : part.bold ?? `#${part.rid}`);
const starred = (part) => (typeof part !== "string" && part.bold ? `*${plain(part)}*` : plain(part));

/** A sentence with asterisks around its bold parts. */
const sentence = (answer) => answer.sentence.map(starred).join("");
const facts = (answer) => Object.fromEntries(answer.facts.map(([name, parts]) => [name, parts.map(plain).join("")]));

test("prompts in its step", () => {
  const story = new Story(), answer = story.why(story.step({ ms: 141, prompt: { 3: 500, 4: 12 }, cause: "prompts" }));
  assert.equal(answer.title, "Why was this token slow?");
  assert.deepEqual(answer.reason, { cause: "prompts", took: 141, usual: 20, tokens: 512, requests: [3, 4] });
  assert.equal(
    sentence(answer),
    "Its step also computed *512 prompt tokens* for #3 and #4, so it took *141 ms* instead of 20.",
  );
  assert.deepEqual(facts(answer), {
    token: "lane 1 · 11",
    "step 10": "2 decode + 2 prompts",
    "queue wait": "1.0 ms",
    preempted: "no",
    "cached, shared": "5, 6 prompt tokens",
    time: "model 139 ms + host 2.0 ms",
  });
});

for (const [replayed, told] of /** @type {[boolean, string][]} */ ([[true, "yes"], [false, "no"]])) {
  test(`a step that was replayed, on any device: ${told}`, () => {
    const story = new Story(), answer = facts(story.why(story.step({ replayed })));
    assert.deepEqual([answer.replayed, answer["CUDA graph"]], [told, undefined]);
  });
}

test("where it is not known what is usual, nothing is invented", () => {
  const story = new Story({ usual: null }),
    answer = story.why(story.step({ ms: 141, prompt: { 3: 512 }, cause: "prompts" }));
  assert.equal(answer.reason.usual, null);
  assert.equal(sentence(answer), "Its step also computed *512 prompt tokens* for #3, so it took *141 ms*.");
  assert.equal(answer.help, "");
  assert.equal(story.why(5).reason.cause, "unknown");
});

test("a preemption", () => {
  const story = new Story();
  story.step({ decode: [2], preempted: [1] });
  story.step({ ms: 100, decode: [2] });
  story.step({ ms: 30, prompt: { 1: 40 }, decode: [2] });
  const answer = story.why(story.step({ cause: "preempted" }));
  assert.deepEqual(answer.reason, { cause: "preempted", took: 170, usual: 20, waited: 120, tokens: 40, moved: 0 });
  assert.equal(facts(answer).preempted, "once");
  assert.equal(facts(answer).time, "model 18 ms + host 2.0 ms + earlier 150 ms", "they add up to 170");
});

test("a preemption whose blocks were swapped", () => {
  const story = new Story();
  story.step({ decode: [2], preempted: [1], swapped: [3, 0] });
  story.step({ ms: 100, decode: [2] });
  const answer = story.why(story.step({ prompt: { 1: 1 }, decode: [1, 2], swapped: [0, 2], cause: "preempted" }));
  assert.deepEqual(answer.reason, { cause: "preempted", took: 140, usual: 20, waited: 120, tokens: 0, moved: 2 });
  assert.match(sentence(answer), /copied back from host memory \(\*8\.0 MB\*\), so/);
  assert.equal(facts(answer)["swapped out, in"], "0 kB, 8.0 MB");
});

test("other causes", () => {
  const cases = /** @type {[object, object][]} */ ([
    [{ ms: 31 }, { cause: "nothing unusual", took: 31 }],
    [{ ms: 90, masks: 60, cause: "masks" }, { cause: "masks", took: 90, masks: 60 }],
    [{ ms: 90, copies: 1, cause: "copies" }, { cause: "copies", took: 90, blocks: 1 }],
    [{ ms: 90, decode: [1, 2, 3, 4], cause: "batch" }, { cause: "batch", took: 90, batch: 4, usualBatch: 2 }],
    [{ ms: 90, cause: "host" }, { cause: "unknown", took: 90, outside: 2 }],
    [{ ms: 90, cause: "other" }, { cause: "unknown", took: 90, outside: 2 }],
  ]);
  for (const [told, expected] of cases) {
    const story = new Story(), answer = story.why(story.step(told));
    assert.deepEqual(answer.reason, { usual: 20, ...expected });
    assert.equal(answer.title, `${"cause" in told ? "Why was" : "Was"} this token slow?`);
  }
});

test("where an unexplained gap was is told with one figure", () => {
  const story = new Story(), short = sentence(story.why(story.step({ ms: 90, cause: "other" })));
  assert.ok(short.endsWith(" it took *90 ms* instead of 20, nearly all of it in the model."), short);
});

test("times measured in slow motion are marked", () => {
  const story = new Story();
  story.frame.knobs = [[story.t, 0, { slow_motion: [1, 5] }]];
  assert.ok(sentence(story.why(story.step({ ms: 100 }))).endsWith(" measured at ×5."));
});

test("a request that steps left out", () => {
  const story = new Story();
  story.step({ ms: 30, decode: [2] });
  story.step({ ms: 30, decode: [2] });
  assert.deepEqual(story.why(story.step({ cause: "left out" })).reason, {
    cause: "left out",
    took: 80,
    usual: 20,
    steps: 2,
  });
});

test("a step without a token", () => {
  const story = new Story();
  const { reason } = story.why(story.step({ ms: 60, prompt: { 3: 40 } }), 3);
  assert.deepEqual(reason, { cause: "no token", took: 60, tokens: 40 });
});

test("what a lower budget would have made of it: 512 prompt tokens took 121 ms beyond the usual 20", () => {
  const story = new Story(), step = story.step({ ms: 141, prompt: { 3: 500, 4: 12 }, cause: "prompts" });
  assert.equal(spaced(story.why(step).help), "With budget 256: about 81 ms.");
  const whole = new Story();
  whole.frame.knobs = [[900, 0, { chunked_prefill: [true, false] }]];
  const help = whole.why(whole.step({ ms: 141, prompt: { 3: 512 }, cause: "prompts" })).help;
  assert.equal(spaced(help), "With chunked prefill and budget 256: about 81 ms.");
});

test("nothing is said about what cannot be known", () => {
  const cases = /** @type {[string, object][]} */ ([
    ["no prompt", { ms: 141, cause: "other" }],
    ["not late", { ms: 24, prompt: { 3: 512 } }],
    ["no budget is that low", { ms: 141, prompt: { 3: 24 }, cause: "prompts" }],
    ["preempted", { ms: 141, prompt: { 3: 512 }, preempted: [1], cause: "preempted" }],
  ]);
  for (const [reason, told] of cases) {
    const story = new Story();
    assert.equal(story.why(story.step(told)).help, "", reason);
  }
});

test("first tokens, and unknown steps", () => {
  tellStory();
  assert.equal(why(1, 2).title, "Why was this token slow?", "it is not known what is usual");
  assert.deepEqual(facts(why(1, 2)).token, "lane 2 · 2");
  assert.deepEqual([why(1, 1).reason.cause, why(1, 1).reason.took], ["first", 12]);
  assert.equal(why(1, 1).title, "Why did the first token take so long?");
  assert.equal(why(1, 77), null);
});
