import { written } from "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { Recording } from "../../../roseplay/play/static/replay/recording.js";

const { good, bad } = written.recordings, [header, first, second, third, ...rest] = good.split("\n");
const refusal = (text) => {
  try {
    return String(new Recording(text, "run.jsonl").count);
  } catch ({ name, message }) {
    return `${name}: ${message}`;
  }
};

test("what was cut off plays as far as it goes", () => {
  const frames = good.split("\n").length - 2;
  assert.ok(frames > 3);
  assert.deepEqual([good, good.slice(0, -30)].map(refusal), [String(frames), String(frames - 1)]);
});

test("what is no recording is refused with the reason", () => {
  const cases = /** @type {[string, string][]} */ ([
    ["notes", "is not a recording"],
    ["", "is empty"],
    ['{"roseplay_recording":7}\n', "format 7"],
    [`${header}\n`, "has no frames"],
    [[header, "[".repeat(100_000), first].join("\n"), "line 2: "],
    [[header, '{"t": NaN}', first].join("\n"), "line 2: "],
    [[header, '{"t": 1e999}', first].join("\n"), "line 2: "],
    [[header, first, second, "{}", third, ...rest].join("\n"), "line 4: t is missing"],
  ]);
  for (const [text, words] of cases) {
    assert.match(refusal(text), /^Error: run\.jsonl .*\.$/);
    assert.ok(refusal(text).includes(words), `${words}: ${refusal(text)}`);
  }
});

for (const [name, [text, words]] of Object.entries(bad)) {
  test(`the server's reader and the page's refuse ${name}`, () => {
    assert.match(refusal(text), /^Error: run\.jsonl is damaged: (the header|line \d+): .*\.$/);
    assert.ok(refusal(text).includes(words.replace(/^line /, "")), refusal(text));
  });
}
