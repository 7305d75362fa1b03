import { given } from "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { randomNumbers } from "./traffic.js";
import { linkTo, pairIn } from "../../../roseplay/play/static/shared/pair/link.js";
import { describePair, drawPair } from "../../../roseplay/play/static/shared/pair/picture.js";

/** @import { Pair } from "../../../roseplay/play/static/shared/types.js" */

Object.assign(globalThis, { location: { origin: "http://here", pathname: "/" } });

const side = (value, gaps, longest) => ({
  title: [["Prefill budget ", ""], [value, "value"]],
  gaps: gaps.slice(1),
  around: gaps.slice(0, 1),
  longest,
  firsts: [427],
});
const figure = (title, before, after, mark) => ({ title, before, after, unit: "ms", mark });

/** @returns {Pair} two bursts, with a pause in each. */
function pairOf(gaps = [[-40, 40], [434, 434], [470, 36]], others = [[-40, 40], [61, 61], [100, 39]]) {
  return /** @type {any} */ ({
    sentence: [["With budget ", ""], ["64", "value"], [", the longest pause was ", ""], ["61 ms", "bold"], [".", ""]],
    ...{ about: "20 prompts", shows: "4 readers", longest: "readers' longest pause", moment: "burst", unit: "ms" },
    sides: [side("∞", gaps, [434, 434]), side("64", others, [61, 61])],
    figures: [figure("longest pause", "434", "61", "effect"), figure("first tokens", "427", "903", "price")],
  });
}

const fragment = (link) => new URL(link).hash;

test("a link holds a pair, and the longest one can still be sent", async () => {
  const draw = randomNumbers(7),
    many = () => Array.from({ length: 400 }, (_, i) => [i * 31, Math.round(draw() * 900) / 10]);
  for (const pair of [pairOf(), pairOf(many(), many())]) {
    const link = await linkTo(pair);
    assert.ok(link.length < 8000, `${link.length} characters`);
    assert.deepEqual(await pairIn(fragment(link)), pair);
  }
});

test("an address without a pair names none", async () => {
  for (const other of ["", "#", "#lab=abc", "#pairs=1"]) assert.equal(await pairIn(other), null);
});

test("a damaged link is one clear line", async () => {
  const good = fragment(await linkTo(pairOf()));
  const packed = async (value) => fragment(await linkTo(value));
  const bad = [good.slice(0, -9), "#pair=", "#pair=%%%", "#pair=abcd", await packed({}), await packed("x".repeat(1e7))];
  bad.push(await packed({ ...pairOf(), sides: [] }), await packed({ ...pairOf(), figures: [{ title: 1 }] }));
  bad.push(await packed(pairOf(Array.from({ length: 3000 }, (_, i) => [i, 1]))));
  for (const one of bad) {
    await assert.rejects(pairIn(one), { message: /^This link holds no complete picture .*\.$/ }, one.slice(0, 60));
  }
  assert.ok(given.recordingShape.frame.fields.pair, "the server declares what is checked");
});

/** What was drawn: words with their places, rings and dots. */
function drawn(pair, width = 556, height = 416) {
  const calls = { words: /** @type {any[]} */ ([]), rings: /** @type {any[]} */ ([]), dots: /** @type {any[]} */ ([]) };
  const wide = (text) => 6 * text.length;
  const pen = {
    ...{ fill() {}, line() {}, text: (words, x, y, _, align) => calls.words.push({ words, x, y, align }), width: wide },
    circle: (x, y) => calls.rings.push({ x, y }),
    dot: (x, y) => calls.dots.push({ x, y }),
    words(words, x, y, _font, color) {
      calls.words.push({ words, x, y, color });
      return x + wide(words);
    },
  };
  const T = Object.fromEntries(
    "surface ink ink2 ink3 line line2 grid rose".split(" ").map((name) => [name, "#000000"]),
  );
  drawPair(/** @type {any} */ (pen), width, height, pair, /** @type {any} */ ({ ...T, rose: "#ff0000" }));
  return calls;
}

test("both runs are drawn on the same axes, their longest pauses ringed and named", () => {
  const { rings: [before, after], words, dots } = drawn(pairOf());
  assert.equal(dots.length, 6);
  const labels = words.filter(({ words }) => /longest pause \d/.test(words)).map(({ words }) => words);
  assert.deepEqual(labels, ["readers' longest pause 434 ms", "readers' longest pause 61 ms"]);
  const base = words.filter(({ words }) => words === "0").map(({ y }) => y - 3.5);
  assert.equal(Math.round((base[0] - before.y) / (base[1] - after.y)), Math.round(434 / 61), "one scale");
  assert.ok(words.some(({ words }) => words === "first tokens (the price)"));
  assert.deepEqual(words.filter(({ color }) => color === "#ff0000").map(({ words }) => words.trim()), [
    "64",
    "∞",
    "64",
    "61",
  ]);
});

test("a label that would lie on dots moves above them", () => {
  const row = Array.from({ length: 300 }, (_, i) => [i * 30 - 3000, 55]);
  const { words, dots } = drawn(pairOf(undefined, [...row, [61, 61]]));
  const label = words.filter(({ words }) => words === "readers' longest pause 61 ms")[0];
  assert.ok(label.y < Math.min(...dots.slice(3).map(({ y }) => y)) - 4, "above all dots of its run");
});

test("everything stays within a phone's width", () => {
  for (const { words, x, align = "left" } of drawn(pairOf(), 390, 560).words) {
    const wide = 6 * words.length, left = x - wide * { left: 0, center: 0.5, right: 1 }[align];
    assert.ok(left >= 0 && left + wide <= 400, `${words} from ${left} to ${left + wide}`);
  }
});

test("a picture is described in words", () => {
  assert.equal(
    describePair(pairOf()),
    "With budget 64, the longest pause was 61 ms. 20 prompts: longest pause 434 → 61 ms, first tokens (the price) 427 → 903 ms.",
  );
});
