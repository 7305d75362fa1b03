import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { suggestions } from "../../../roseplay/play/static/lanes/suggestions.js";
import { startAnew } from "./traffic.js";

const lanes = [0, 1, 2, 3, 4, 5, 6, 7], info = { num_blocks: 9, block_size: 16, max_model_len: 64 };

test("every lane has two questions, and the first four lanes have different ones", () => {
  for (const model of ["tiny-chat", "SmolLM2-135M-Instruct"]) {
    startAnew({ info: { ...info, model } });
    assert.ok(lanes.every((lane) => suggestions(lane).length === 2));
    assert.equal(new Set(lanes.slice(0, 4).flatMap(suggestions)).size, 8);
  }
});

test("the embedded model, which knows one subject, gets questions of its own", () => {
  startAnew({ info: { ...info, model: "tiny-chat" } });
  const own = lanes.flatMap(suggestions);
  startAnew({ info: { ...info, model: "Qwen3-8B" } });
  assert.ok(lanes.flatMap(suggestions).every((question) => !own.includes(question)));
});
