import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { partsOf } from "../../../roseplay/play/static/lanes/bold.js";

const cases = /** @type {[string, string, string][]} */ ([
  ["1. **Sleep** well, **eat well**.", "1. <Sleep> well, <eat well>.", ""],
  ["**a**", "<a>", ""],
  ["Do **Sleep", "Do **Sleep", "Do <Sleep>"],
  ["**Sleep** and **", "<Sleep> and **", "<Sleep> and <>"],
  ["**Sleep\nwell**", "**Sleep\nwell**", ""],
  ["2**3 and 4**2, ** a **, ***a***", "2**3 and 4**2, ** a **, ***a***", ""],
]);

for (const [text, ended, goesOn] of cases) {
  test(`what is bold in ${JSON.stringify(text)}`, () => {
    const words = ({ start, end, look }) => look ? `<${text.slice(start, end)}>` : text.slice(start, end);
    assert.equal(partsOf(text, false).map(words).join(""), ended);
    assert.equal(partsOf(text, true).map(words).join(""), goesOn || ended);
  });
}
