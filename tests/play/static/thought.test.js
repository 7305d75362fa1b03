import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { thinkingPart } from "../../../roseplay/play/static/lanes/thought.js";

const cases = /** @type {[string, boolean, [string, string] | null][]} */ ([
  ["<think>\nso\n</think>\n\nyes", false, ["so", "yes"]],
  ["\n<think>so</think>yes", false, ["so", "yes"]],
  ["so\n</think>\n\nyes", true, ["so", "yes"]],
  ["so</think>yes", false, ["so", "yes"]], // other servers do not report how the prompt ended
  ["<think>so", false, ["so", ""]],
  ["so", true, ["so", ""]],
  ["<think>\n\n</think>\n\nyes", false, ["", "yes"]],
  ["yes", false, null],
  ["write <think> and </think>", false, null],
  ["", false, null],
]);

for (const [words, begun, expected] of cases) {
  test(`the thinking part of ${JSON.stringify(words)}${begun ? ", begun in the prompt" : ""}`, () => {
    const part = thinkingPart(words, begun);
    assert.deepEqual(part && [words.slice(part.start, part.end), words.slice(part.after)], expected);
  });
}
