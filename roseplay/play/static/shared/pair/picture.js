/* Two runs in one picture: the gaps between the tokens of each, one run above the other on the same axes and aligned at
 * the burst, with the setting that differs as their titles; over the gaps, the steps that computed the prompts; under
 * them the effect, its price and the throughput. Live and reports draw it, and it is copied as a file.
 * `traffic/pair.py` has its data. */
import { drawBase, drawLevels, drawUprights, drawWords } from "../chart/axes.js";
import { evenTicks, linear, ticksAt } from "../chart/scale.js";
import { format } from "../format.js";
import { niceAxis } from "../numbers.js";
import { sharp } from "../pen.js";
import { plain } from "../sentence.js";
import { fade } from "../theme.js";

/** @import { Area } from "../chart/axes.js" */
/** @import { Pen } from "../pen.js" */
/** @import { Palette } from "../theme.js" */
/** @import { Pair, Sentence } from "../types.js" */

const SIDE_PX = 12, LEFT_PX = 44, NARROW_PX = 460;
const SENTENCE = { px: 13, line: 18 }, NOTE = { px: 11, line: 15 }, TITLE_PX = 12, FIGURE_PX = 17;
const FILM_PX = 22, APART_PX = 0.7, LEAST_STEP_PX = 1.5;
const ABOVE_PX = 24, BETWEEN_PX = 10, UNDER_PX = 24, FIRST_PX = 6, DOT_PX = 1.5, RING_PX = 7, HEAD_ROOM = 1.25;
const WORDS = 14, FROZEN = 3, FROZEN_MS = 150; // a pause of as many times the mean gap, and as long
const TEXT = "Every word comes when the reader of this run got a token: a pause lasts as long as it did.".split(" ");
const PARTS = 3, FIGURES_PX = 52, ROW_PX = 26, LEAST_PLOT_PX = 60, MARGIN = 1.02;

const sans = (px, bold = false) => `${bold ? 700 : 400} ${px}px "RP Sans", sans-serif`;

/** Draw a picture over the whole of a pen's canvas.
 * @param {Pen} pen
 * @param {number} width
 * @param {number} height
 * @param {Pair} pair
 * @param {Palette} T
 * @param {number} [now] up to when it is drawn, in ms of its axis, with the words that a reader has got by then */
export function drawPair(pen, width, height, pair, T, now = Infinity) {
  pen.fill(T.surface, 0, 0, width, height);
  const wide = width - 2 * SIDE_PX, narrow = width < NARROW_PX;
  let y = wrap(pen, pair.sentence, 6, wide, SENTENCE, T.ink, T);
  const note = `${pair.about}, aligned at the ${pair.moment}. Dots: ms between two tokens ${pair.shows}.`;
  const { sides } = pair, film = sides.some(({ steps }) => steps);
  const boxes = film ? ` Boxes: ${pair.boxes ?? "steps with prompts"}, width = time, height = tokens.` : "";
  const marks = boxes + (sides.some(({ firsts }) => firsts.length) ? " Ticks below: first tokens." : "");
  y = wrap(pen, [[note + marks, ""]], y + 2, wide, NOTE, T.ink3, T);
  const rows = narrow ? ROW_PX * pair.figures.length + 4 : FIGURES_PX;
  const above = ABOVE_PX + (film ? FILM_PX : 0);
  const high = Math.max(LEAST_PLOT_PX, (height - rows - UNDER_PX - BETWEEN_PX - y) / 2 - above);
  const areas = pair.sides.map((_, i) => {
    const y0 = y + above + i * (high + above + BETWEEN_PX);
    return { x0: LEFT_PX, x1: width - SIDE_PX, y0, y1: y0 + high, width: width - SIDE_PX - LEFT_PX, height: high };
  });
  drawSides(pen, pair, areas, T, now);
  (narrow ? figureRows : figureColumns)(pen, pair.figures, width, height - rows, T);
}

// ---- the two runs -----------------------------------------------------------------------------------------
/** @param {Pen} pen @param {Pair} pair @param {Area[]} areas @param {Palette} T @param {number} now */
function drawSides(pen, { sides, moment, longest, unit }, areas, T, now) {
  const all = sides.flatMap(({ gaps, around }) => [...gaps, ...around]), times = all.map(([t]) => t);
  const most = Math.max(10, ...all.map(([, ms]) => ms), ...sides.map(({ longest }) => longest?.[1] ?? 0));
  const { max, step } = niceAxis(most * HEAD_ROOM, PARTS);
  const steps = sides.flatMap(({ steps = [] }) => steps), tokens = Math.max(1, ...steps.map((step) => step[2]));
  const from = Math.min(0, ...times),
    to = MARGIN * Math.max(100, ...times, ...sides.flatMap(({ firsts }) => firsts), ...steps.map((step) => step[1]));
  sides.map((side) => seenBy(side, now)).forEach((side, i) => {
    const area = areas[i], x = linear(from, to, area.x0, area.x1), y = linear(0, max, area.y1, area.y0);
    const uprights = timeTicks(x, from, to, moment);
    const titleY = area.y0 - 9 - (side.steps ? FILM_PX : 0);
    const left = segments(pen, side.title, SIDE_PX, titleY, TITLE_PX, T, true) + 2 * SIDE_PX;
    if (now < to) drawRead(pen, side, now, left, titleY, area.x1 - left, T);
    drawFilm(pen, side.steps ?? [], x, area, tokens, T);
    drawLevels(pen, area, evenTicks(y, PARTS, step), T);
    drawUprights(pen, area, uprights, T);
    drawBase(pen, area, T);
    if (now >= from && now < to) pen.line(sharp(x(now)), area.y0, sharp(x(now)), area.y1, T.ink);
    pen.line(sharp(x(0)), area.y0, sharp(x(0)), area.y1, T.rose, [2, 3]);
    for (const ms of side.firsts) pen.line(sharp(x(ms)), area.y1 + 2, sharp(x(ms)), area.y1 + 2 + FIRST_PX, T.ink3);
    const placed = (gaps) => gaps.map(([t, ms]) => ({ x: x(t), y: y(ms) }));
    const around = placed(side.around), dots = placed(side.gaps);
    for (const dot of around) pen.dot(dot.x, dot.y, DOT_PX, fade(T.ink3, 0.4));
    for (const dot of dots) pen.dot(dot.x, dot.y, DOT_PX, fade(T.ink, 0.8));
    if (side.first <= now) drawFirst(pen, x(side.first), `${longest} ${format.figure(side.first)} ${unit}`, area, T);
    if (side.longest) {
      const [t, ms] = side.longest, words = `${longest} ${format.figure(ms)} ${unit}`;
      ring(pen, { x: x(t), y: y(ms) }, words, [...around, ...dots], area, T);
    }
    if (i === sides.length - 1) drawWords(pen, { ...area, y1: area.y1 + FIRST_PX }, uprights, T);
  });
}

/* A time to first token that is marked and named. */
function drawFirst(pen, x, words, area, T) {
  const font = sans(TITLE_PX, true),
    wide = pen.width(words, font),
    left = x + 4 + wide < area.x1 ? x + 4 : x - 4 - wide;
  pen.line(sharp(x), area.y0, sharp(x), area.y1 + FIRST_PX, T.rose);
  pen.words(words, left, area.y0 + TITLE_PX, font, T.ink);
}

/* What of a side has happened. */
function seenBy(side, now) {
  const before = (rows = []) => rows.filter(([t]) => t <= now), { gaps, around, firsts, steps, longest } = side;
  const seen = { gaps: before(gaps), around: before(around), firsts: firsts.filter((t) => t <= now) };
  const begun = steps && before(steps).map(([t0, t1, tokens]) => [t0, Math.min(t1, now), tokens]);
  return { ...side, ...seen, steps: begun, longest: longest?.[0] <= now ? longest : undefined };
}

/* The newest words of a reader that gets one with each of its tokens, or for how long it has got none; before the first
 * token, only of a reader whose wait for it is marked. */
function drawRead(pen, { reader: times = [], first }, now, x, y, wide, T) {
  const read = times.filter((t) => t <= now),
    pause = now - (read.at(-1) ?? (first === undefined ? now : 0)),
    from = Math.max(0, read.length - WORDS);
  const usual = (times[times.length - 1] - times[0]) / times.length, bold = sans(TITLE_PX, true);
  if (now < times[times.length - 1] && pause > Math.max(FROZEN_MS, FROZEN * usual)) {
    return pen.words(`${read.length ? "frozen" : "waiting"} ${format.seconds(pause)}`, x, y, bold, T.rose);
  }
  const words = read.slice(from).map((_, i) => TEXT[(from + i) % TEXT.length]), font = sans(TITLE_PX);
  while (words.length && pen.width(words.join(" "), font) > wide) words.shift();
  pen.words(words.join(" "), x, y, font, T.ink2);
}

/* A frame for each step, as wide as it took and as high as its tokens. */
function drawFilm(pen, steps, x, area, most, T) {
  for (const [t0, t1, tokens] of steps) {
    const high = Math.max(2, (FILM_PX * tokens) / most), left = Math.max(area.x0, x(t0));
    const wide = Math.max(LEAST_STEP_PX, Math.min(area.x1, x(t1)) - left - APART_PX);
    if (left < area.x1) pen.fill(T.prompt, left, area.y0 - 5 - high, wide, high);
  }
}

/* Ticks of a time axis that counts from its moment, in seconds. */
function timeTicks(x, from, to, moment) {
  const step = niceAxis(to - from, 5).step, values = [];
  for (let i = Math.ceil(from / step); i * step <= to; i++) values.push(i * step);
  const sign = (ms) => (ms > 0 ? "+" : "−") + +(Math.abs(ms) / 1000).toPrecision(3);
  return ticksAt(x, values, "", (ms) => (ms === 0 ? moment : `${sign(ms)} s`));
}

/* The longest gap, ringed and named: beside the ring, or above all dots that its name would cover. */
function ring(pen, at, words, dots, area, T) {
  const font = sans(TITLE_PX, true);
  const wide = pen.width(words, font), apart = RING_PX + 6;
  pen.circle(at.x, at.y, RING_PX, null, T.rose, 1.5);
  const right = at.x + apart, left = at.x - apart - wide;
  const within = (x) => x >= area.x0 && x + wide <= area.x1;
  const covered = (x, y) =>
    dots.some((dot) => dot.x > x - 3 && dot.x < x + wide + 3 && dot.y > y - TITLE_PX && dot.y < y + 5);
  const beside = [right, left].find((x) => within(x) && !covered(x, at.y + 4));
  const x = beside ?? (within(right) ? right : Math.max(area.x0 + 2, left));
  const under = dots.filter((dot) => dot.x > x - 3 && dot.x < x + wide + 3).map((dot) => dot.y);
  const y = beside === undefined ? Math.max(area.y0 + TITLE_PX, Math.min(at.y, ...under) - 9) : at.y + 4;
  if (beside === undefined) pen.line(sharp(at.x), y + 3, sharp(at.x), at.y - RING_PX, T.rose);
  pen.words(words, x, y, font, T.ink);
}

// ---- figures ----------------------------------------------------------------------------------------------
const MARKS = { price: " (the price)", gain: " (in return)" };
const nameOf = ({ title, mark }) => title + (MARKS[mark] ?? "");
const between = ({ mark }) => (mark === "same" ? " and " : " → ");
const values = (figure) => `${figure.before}${between(figure)}${figure.after} ${figure.unit}`;

/** A figure of a pair, in words. @param {Pair["figures"][number]} figure */
export const figureText = (figure) => `${nameOf(figure)} ${values(figure)}`;

/* "434 → 53 ms", the effect in the colour of settings, or "17 and 18 ms". Returns where it ends. */
function change(pen, figure, x, y, px, T) {
  const { before, after, unit, mark } = figure;
  const parts = /** @type {[string, number, string][]} */ ([
    [before + between(figure), px, T.ink],
    [after, px, mark === "effect" ? T.rose : T.ink],
    [` ${unit}`, px - 4, T.ink],
  ]);
  for (const [words, size, color] of parts) x = pen.words(words, x, y, sans(size, true), color);
  return x;
}

function figureColumns(pen, figures, width, top, T) {
  const widths = (px) => figures.map((figure) => pen.width(values(figure), sans(px, true)) + 2 * SIDE_PX);
  const sum = (wide) => wide.reduce((total, one) => total + one, 0), usual = sum(widths(FIGURE_PX));
  const px = Math.max(NOTE.px, Math.min(FIGURE_PX, FIGURE_PX * width / usual)), wide = widths(px);
  const spare = (width - sum(wide)) / Math.max(1, figures.length);
  pen.line(0, sharp(top), width, sharp(top), T.line);
  let x = -spare - (wide[0] ?? 0);
  figures.forEach((figure, i) => {
    x += spare + wide[Math.max(0, i - 1)];
    if (i) pen.line(sharp(x), top, sharp(x), top + FIGURES_PX, T.line);
    pen.words(nameOf(figure), x + SIDE_PX, top + 18, sans(NOTE.px), T.ink3);
    change(pen, figure, x + SIDE_PX, top + 39, px, T);
  });
}

function figureRows(pen, figures, width, top, T) {
  figures.forEach((figure, i) => {
    const y = top + i * ROW_PX;
    pen.line(0, sharp(y), width, sharp(y), T.line);
    pen.words(nameOf(figure), SIDE_PX, y + 17, sans(NOTE.px), T.ink3);
    const px = FIGURE_PX - 2, fits = px * (width / 2 - SIDE_PX) / pen.width(values(figure), sans(px, true));
    change(pen, figure, width / 2, y + 18, Math.min(px, fits), T);
  });
}

// ---- text -------------------------------------------------------------------------------------------------
const INK = { value: "rose" };

/** A line of segments. Returns where it ends. @param {Pen} pen @param {Sentence} sentence */
function segments(pen, sentence, x, y, px, T, bold = false) {
  for (const [text, style] of sentence) {
    x = pen.words(text, x, y, sans(px, bold || style !== ""), T[INK[style] || "ink"]);
  }
  return x;
}

/** Segments in as many lines as they need, from `top` on. Returns where they end. @param {Sentence} sentence */
function wrap(pen, sentence, top, wide, { px, line }, color, T) {
  if (!sentence.length) return top;
  let x = 0, y = top + px;
  for (const [text, style] of sentence) {
    const font = sans(px, style !== ""), ink = style === "value" ? T.rose : color;
    for (const word of text.split(/(?<= )/)) {
      if (x > 0 && x + pen.width(word.trimEnd(), font) > wide) [x, y] = [0, y + line];
      x = pen.words(word, SIDE_PX + x, y, font, ink) - SIDE_PX;
    }
  }
  return y + line - px;
}

/** What a picture shows, in words. @param {Pair} pair */
export function describePair({ sentence, about, figures }) {
  return `${plain(sentence)} ${about}: ${figures.map(figureText).join(", ")}.`.trim();
}
