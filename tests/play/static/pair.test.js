import { given } from "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { randomNumbers } from "./traffic.js";
import { copy } from "../../../roseplay/play/static/shared/copy.js";
import { copyPair } from "../../../roseplay/play/static/shared/pair/copy.js";
import { linkTo, pairIn } from "../../../roseplay/play/static/shared/pair/link.js";
import { describePair, drawPair } from "../../../roseplay/play/static/shared/pair/picture.js";

/** @import { Pair } from "../../../roseplay/play/static/shared/types.js" */

Object.assign(globalThis, { location: { origin: "http://here", pathname: "/" } });

const side = (value, gaps, longest, steps) => ({
  title: [["Prefill budget ", ""], [value, "value"]],
  gaps: gaps.slice(1),
  around: gaps.slice(0, 1),
  longest,
  firsts: [427],
  steps,
});
const figure = (title, before, after, mark) => ({ title, before, after, unit: "ms", mark });

/** @returns {Pair} two bursts, with a pause in each. */
function pairOf(gaps = [[-40, 40], [434, 434], [470, 36]], others = [[-40, 40], [61, 61], [100, 39]]) {
  return /** @type {any} */ ({
    sentence: [["With budget ", ""], ["64", "value"], [", the longest pause was ", ""], ["61 ms", "bold"], [".", ""]],
    ...{ about: "20 prompts", shows: "4 readers", longest: "readers' longest pause", moment: "burst", unit: "ms" },
    sides: [
      side("∞", gaps, [434, 434], [[2, 436, 720]]),
      side("64", others, [61, 61], Array.from({ length: 12 }, (_, i) => [50 * i, 50 * i + 50, 64])),
    ],
    figures: [figure("longest pause", "434", "61", "effect"), figure("first tokens", "427", "903", "price")],
  });
}

const fragment = (link) => new URL(link).hash;
const DAMAGED = /^This link holds no complete picture .*\.$/;

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
  for (const other of ["", "#", "#tab=abc", "#pairs=1"]) assert.equal(await pairIn(other), null);
});

test("a damaged link is one clear line", async () => {
  const good = fragment(await linkTo(pairOf()));
  const packed = async (value) => fragment(await linkTo(value));
  const bad = [good.slice(0, -9), "#pair=", "#pair=%%%", "#pair=abcd", await packed({}), await packed("x".repeat(1e7))];
  bad.push(await packed({ ...pairOf(), sides: [] }), await packed({ ...pairOf(), figures: [{ title: 1 }] }));
  bad.push(await packed(pairOf(Array.from({ length: 3000 }, (_, i) => [i, 1]))));
  for (const one of bad) {
    await assert.rejects(pairIn(one), { message: DAMAGED }, one.slice(0, 60));
  }
  assert.ok(given.recordingShape.frame.fields.pair, "the server declares what is checked");
});

/** A text with one to three pieces cut, put in or replaced; some begin a word of JSON. */
function mutated(text, draw) {
  const at = () => Math.floor(draw() * (text.length + 1)),
    pieces = ["", "A", "z", "9", "-", "null", "[]", "{}", "1e308", '"'];
  for (let left = 1 + draw() * 3; left >= 1; left--) {
    const from = at(), cut = draw() < 0.5 ? Math.floor(draw() ** 4 * text.length) : 1;
    text = text.slice(0, from) + pieces[Math.floor(draw() * pieces.length)] + text.slice(from + cut);
  }
  return text;
}

test("a link that was cut or changed at random shows what was linked, or is one clear line", async () => {
  const draw = randomNumbers(11), pair = pairOf(), good = fragment(await linkTo(pair)), head = "#pair=";
  let refused = 0;
  for (let i = 0; i < 1000; i++) {
    const bad = head + mutated(good.slice(head.length), draw);
    try {
      assert.deepEqual(await pairIn(bad), pair, bad);
    } catch (error) {
      assert.match(error.message, DAMAGED, bad);
      refused++;
    }
  }
  assert.ok(refused > 900, `${refused} were refused`);
});

test("whatever a link's author put into it is drawn, or is one clear line", async () => {
  const draw = randomNumbers(12), text = JSON.stringify(pairOf());
  let shown = 0;
  for (let i = 0; i < 3000; i++) {
    const hostile = parsed(mutated(text, draw));
    if (hostile === undefined) continue;
    const pair = await pairIn(fragment(await linkTo(hostile))).catch(({ message }) => assert.match(message, DAMAGED));
    if (!pair) continue;
    assert.deepEqual(pair, hostile);
    assert.equal(typeof describePair(pair), "string");
    drawn(pair);
    shown++;
  }
  assert.ok(shown > 100, `${shown} were drawn`);
});

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** What was drawn: words with their places, rings and dots. */
function drawn(pair, width = 556, height = 416, now = Infinity) {
  const none = () => /** @type {any[]} */ ([]), calls = { words: none(), rings: none(), dots: none(), boxes: none() };
  const wide = (text) => 6 * text.length;
  const pen = {
    fill: (color, x, y, w, h) => color === "#0000ff" && calls.boxes.push({ x, y, w, h }),
    ...{ line() {}, text: (words, x, y, _, align) => calls.words.push({ words, x, y, align }), width: wide },
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
  drawPair(
    /** @type {any} */ (pen),
    width,
    height,
    pair,
    /** @type {any} */ ({ ...T, rose: "#ff0000", prompt: "#0000ff" }),
    now,
  );
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

test("the steps that computed the prompts are as wide as they took and as high as their tokens", () => {
  const { boxes: [fat, ...thin] } = drawn(pairOf());
  assert.equal(thin.length, 12);
  const near = (value, expected) => assert.ok(Math.abs(value - expected) < 1, `${value}, not ${expected}`);
  near((fat.w + 0.7) / (thin[0].w + 0.7), 434 / 50);
  near(fat.h / thin[0].h, 720 / 64);
  near(thin[1].x - thin[0].x, thin[0].w + 0.7);
  const { sides: [first, second], ...rest } = pairOf(),
    bare = { ...rest, sides: [first, second].map(({ steps: _, ...one }) => one) };
  assert.deepEqual(drawn(bare).boxes, [], "without steps, as of another server");
});

test("a race shows what has happened by then, and for how long a reader has waited", () => {
  const { sides: [before, after], ...rest } = pairOf(), every = (ms) => Array.from({ length: 20 }, (_, i) => ms * i);
  const sides = [{ ...before, reader: [-40, 0, 434, ...every(40).map((t) => t + 474)] }, {
    ...after,
    reader: every(40),
  }];
  const read = (now) => drawn({ ...rest, sides }, 556, 416, now);
  const { words, dots, rings, boxes } = read(300);
  const at = (text) => words.findIndex((one) => one.words === text);
  assert.ok(at("frozen 300 ms") >= 0 && at("Every word comes when the reader of this") >= 0, JSON.stringify(words));
  assert.deepEqual(
    [dots.length, rings.length, boxes.length],
    [4, 1, 8],
    "neither the pause that lasts nor later steps",
  );
  assert.equal(read(Infinity).dots.length, 6);
  const late = sides.map((side, i) => ({ ...side, reader: [500, 540], ...(i && { first: 500 }) }));
  const begun = drawn({ ...rest, sides: late, boxes: "steps" }, 556, 416, 300).words.map(({ words }) => words);
  assert.equal(begun.filter((text) => text === "waiting 300 ms").length, 1, "which is marked");
  assert.ok(begun.join("").includes("Boxes: steps, width"));
});

test("a time to first token is marked where a sentence speaks of it", () => {
  const { sides, ...rest } = pairOf(), firsts = sides.map(({ longest: _, ...side }) => ({ ...side, first: 427 }));
  const { words, rings } = drawn({ ...rest, longest: "half of the first tokens after", sides: firsts });
  assert.equal(words.filter((one) => one.words === "half of the first tokens after 427 ms").length, 2);
  assert.equal(rings.length, 0);
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

// ---- copying ----------------------------------------------------------------------------------------------
const drawing = new Proxy({}, { get: () => (text) => ({ width: 6 * `${text}`.length }), set: () => true });

/**
 * Do something in a click in a browser, and return what it has then copied, saved and shown.
 * @param {any} browser `types` that its clipboard takes, none without https; `lasts`: whether it takes them after the
 *   click as well, as Safari does not; `old`: whether it knows the old way; `draws`: whether it makes pictures
 * @param {() => Promise<any>} act
 */
async function clicked({ types = ["image/png", "text/plain"], lasts = false, old = false, draws = true }, act) {
  const seen = { copied: /** @type {any} */ ({}), saved: "", address: "", result: null };
  let within = true, typed = "";
  const allowed = (contents) => (within || lasts) && Object.keys(contents).every((type) => types.includes(type));
  async function write([{ contents }]) {
    if (!allowed(contents)) throw new Error("not allowed");
    const made = await Promise.all(
      Object.entries(contents).map(async ([type, made]) => [type, await (await made).text()]),
    );
    seen.copied = Object.fromEntries(made);
  }
  const element = () => ({
    ...{ append() {}, select() {}, remove() {}, focus() {}, textContent: "", download: "" },
    setAttribute: (name, value) => (typed = name === "value" ? value : typed),
    click() {
      seen.saved = this.download;
    },
    getContext: () => drawing,
    toBlob: (done) => done(draws ? new Blob(["picture"]) : null),
  });
  const clipboard = { write, writeText: (text) => write([{ contents: { "text/plain": new Blob([text]) } }]) };
  const execCommand = () => old && Boolean(seen.copied = { "text/plain": typed });
  const before = { navigator: globalThis.navigator, setTimeout: globalThis.setTimeout };
  Object.assign(document, { createElement: element, execCommand, body: { ...document.body, append() {} } });
  Object.assign(globalThis, {
    ClipboardItem: class {
      constructor(contents) {
        Object.assign(this, { contents });
      }
    },
    history: { replaceState: (_, __, address) => (seen.address = address) },
    setTimeout: () => 0,
  });
  Object.defineProperty(globalThis, "navigator", {
    value: { clipboard: types.length ? clipboard : undefined },
    configurable: true,
  });
  try {
    const doing = act();
    within = false;
    seen.result = await doing;
  } finally {
    Object.defineProperty(globalThis, "navigator", { value: before.navigator, configurable: true });
    globalThis.setTimeout = before.setTimeout;
  }
  return seen;
}

test("a picture and its link are copied within the click, or it is said what was done instead", async () => {
  const pair = pairOf(), link = await linkTo(pair), linkOnly = { "text/plain": link };
  const both = { "image/png": "picture", ...linkOnly }, saved = "roseplay-before-and-after.png";
  for (
    const [browser, words, copied, file, address] of /** @type {any[]} */ ([
      [{}, "Picture and link copied", both, "", ""],
      [{ lasts: true }, "Picture and link copied", both, "", ""],
      [{ types: ["text/plain"], lasts: true }, "Picture saved, link copied", linkOnly, saved, ""],
      [{ types: ["text/plain"] }, "Picture saved, link in the address bar", {}, saved, link],
      [{ types: [], old: true }, "Picture saved, link copied", linkOnly, saved, ""],
      [{ types: [] }, "Picture saved, link in the address bar", {}, saved, link],
      [{ draws: false, lasts: true }, "No picture, link copied", linkOnly, "", ""],
    ])
  ) {
    const button = /** @type {any} */ ({ textContent: "" });
    const seen = await clicked(browser, () => copyPair(button, pair));
    assert.equal(button.textContent, words);
    assert.deepEqual([seen.copied, seen.saved, seen.address], [copied, file, address], words);
  }
});

test("a text that is still being made is copied within the click as well", async () => {
  for (const text of ["now", Promise.resolve("later")]) {
    const expected = { "text/plain": await text };
    for (const browser of [{}, { types: [], old: true }]) {
      const { copied, result } = await clicked(browser, () => copy(text));
      assert.deepEqual([copied, result], [expected, true]);
    }
    assert.equal((await clicked({ types: [] }, () => copy(text))).result, false);
  }
});
