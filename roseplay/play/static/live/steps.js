/* The step timeline: which requests were computed when. It has a row for each request: prompt chunks are tall, decode
 * is thin, waiting is dotted; a diamond marks a preemption, a tick the end, two squares a block that was copied before
 * writing. The numbers of running and waiting requests are on top.
 *
 * Pointing at a row emits "hover", a click on a step of it "select"; stepcells.js has this, the keys, zooming and
 * panning. */
import { drawUprights, drawWords } from "../shared/chart/axes.js";
import { linear } from "../shared/chart/scale.js";
import { make, svg, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { legendEntry, legendLine, segmented } from "../shared/legend.js";
import { Panel } from "../shared/panel.js";
import { sharp } from "../shared/pen.js";
import { pointing, standsBack } from "../shared/pointing.js";
import { store } from "../shared/store.js";
import { fade, palette, textOn } from "../shared/theme.js";
import { time } from "../shared/time.js";
import { timeTicks } from "./axes.js";
import { flagWords, knobMarks } from "./knobmarks.js";

import { drawOverview } from "./overview.js";
import { drawAccepted, hasDrafts } from "./drafts.js";
import { requestTable } from "./requests.js";
import { inkShades, shadesLegend } from "./shades.js";
import { stepsIn, stepSpan } from "./span.js";
import { outlineCell, watch } from "./stepcells.js";
import { LEFT, RIGHT, rows, timeline } from "./timeline.js";
import { nothingIn, USUAL_SPAN, view } from "./view.js";

/** @type {[number, number]} */
const OVERVIEW = [15, 43];
const BOTTOM = 18, TOP = 52;
const MS_PER_PX = 8000 / 596, LEAST_SPAN_MS = 6000; // a wider panel shows more seconds
const ROW = 13, LEAST_ROW = 4, MORE_PX = 12, CHUNK = 10, DECODE = 3, LANES_GAP = 8;
const NOTCH_PX = 3; // steps wider than this stand apart
const NOTHING = "One row per request: when it waited, and which steps computed it.";

let panel = null, pen = null, g = null, rare = [], shades = null, waitWord = null, summary = "No steps yet.";

export function mount(element) {
  const describe = () => `Step timeline. ${summary}`, spec = { every: 1, follows: true, keys: true, draw, describe };
  panel = new Panel(element, { name: "steps", canvas: "rp-steps", ...spec });
  const { canvas } = panel;
  ({ pen, pen: { g } } = panel);
  waitWord = make("span");
  const table = requestTable(element), legends = legend();
  const views = segmented("view", ["timeline", "ITL", "requests"], (word) => {
    const asTable = word === "requests";
    timeline.byItl = word === "ITL";
    element.classList.toggle("rp-by-itl", timeline.byItl);
    document.body.classList.toggle("rp-tabled", asTable);
    canvas.hidden = asTable;
    table.box.hidden = !asTable;
    panel.show(...(asTable ? [table.filters, views, table.csv] : [...legends, views]));
    (asTable ? table.again : panel.soon)();
  });
  shades = shadesLegend();
  legends.push(shades.entry);
  panel.show(...legends, views);
  rare = ["preempted", "copied"].map((name) => ({ name, entry: element.querySelector(`.rp-${name}`) }));
  watch(canvas, panel.said, panel.soon);
  on("reset", () => {
    rows.clear();
    rename();
  });
  on("absent", rename);
  rename(); // the first reply may have come before
  on("step", panel.soon);
}

/* Change the title if there are no steps: then it shows requests, and another server may compute while they wait. */
function rename() {
  write(waitWord, store.absent.steps ? "waiting" : "queued");
  if (store.absent.steps) panel.rename("Requests", "Requests over time");
  else panel.rename("Steps");
}

// ---- drawing --------------------------------------------------------------------------------------------
function draw(width, height, now) {
  pen.begin(width, height);
  const left = LEFT, plot = width - LEFT - RIGHT;
  const roomy = Math.max(LEAST_SPAN_MS, Math.round((plot * MS_PER_PX) / 1000) * 1000);
  const span = view.span === USUAL_SPAN ? roomy : view.span, window = view.window(now, span);
  const x = linear(window.x0, window.x1, left, left + plot);
  Object.assign(timeline, { T: palette(), window, width, height, plot, x });
  const seen = stepsIn(window).reverse(); // the oldest first
  rows.update(window);
  layRows();
  grid();
  column();
  g.save();
  g.beginPath();
  g.rect(left, 0, plot + 1, height);
  g.clip();
  drawOverview(g, OVERVIEW, seen);
  waiting();
  const count = store.absent.steps ? streams() : work(seen);
  marks();
  outlineRequest();
  outlineCell(pen);
  g.restore();
  labels();
  knobs();
  document.body.classList.toggle("rp-worked", rows.visible.length > 0); // no room for the list of demos
  if (!rows.visible.length) {
    const words = document.body.matches(".rp-first") ? "" : NOTHING; // the list of demos
    pen.note(nothingIn(window, words), left + plot / 2, (TOP + height - BOTTOM) / 2);
  }
  sub(span);
  const unfinished = rows.visible.filter((known) => known.finished === null).length;
  const what = store.absent.steps ? "tokens" : "steps";
  summary = `${count} ${what} in view, ${rows.visible.length} requests; ${unfinished} of them unfinished. ` +
    "Arrow keys go from step to step and row to row, Enter opens one.";
}

/* Compute the middle of each row: first the lanes, then a line, then all other requests. */
function layRows() {
  const below = TOP + ROW * rows.lanes + LANES_GAP, room = timeline.height - BOTTOM - below;
  const others = Math.max(rows.count - rows.lanes, 1), more = others * LEAST_ROW > room ? MORE_PX : 0;
  const high = (timeline.rowHeight = Math.max(LEAST_ROW, Math.min(ROW, room / others))); // the lanes keep theirs
  timeline.shown = rows.lanes + Math.max(0, Math.min(rows.count - rows.lanes, Math.floor((room - more) / high)));
  timeline.y = (row) => (row < rows.lanes ? TOP + ROW * (row + 0.5) : below + high * (row - rows.lanes + 0.5));
  timeline.high = (row) => (row < rows.lanes ? ROW : high);
}

function grid() {
  const { T, window, plot, height } = timeline, bottom = height - BOTTOM;
  const ticks = timeTicks(window, plot, 60).map(({ x, text }) => ({ at: timeline.x(x), words: text }));
  const area = { x0: LEFT, x1: LEFT + plot, y0: 0, y1: bottom, width: plot, height: bottom };
  drawUprights(pen, area, ticks, T);
  drawWords(pen, area, ticks, T);
  if (window.live) pen.line(sharp(LEFT + plot), 0, sharp(LEFT + plot), bottom, T.line2);
  pen.line(LEFT, OVERVIEW[1] + 0.5, LEFT + plot, OVERVIEW[1] + 0.5, T.line);
  const under = sharp(TOP + ROW * rows.lanes + LANES_GAP / 2);
  pen.line(8, under, LEFT + plot, under, T.line);
}

/* Shade the step that is pointed at, otherwise that of the selected token, as a column. */
function column() {
  const step = pointing.step ?? (pointing.selected && pointing.selected.step);
  const { steps } = store, row = step === null ? -1 : store.stepRow(step);
  if (row < 0) return;
  const span = stepSpan(row & steps.mask), x0 = timeline.x(span.x0), x1 = timeline.x(span.x1);
  const left = x0 > timeline.width / 2;
  pen.fill(fade(timeline.T.ink, 0.1), x0, 0, Math.max(1.5, x1 - x0), timeline.height - BOTTOM);
  pen.text(`step ${format.count(step)}`, left ? x0 - 5 : x1 + 5, 10, timeline.T.ink, left ? "right" : "left", true);
}

const dim = (rid) => (standsBack(rid) ? 0.25 : 1);

/* Dotted: from submit to its first step, and from a preemption to the step that takes it up again. */
function waiting() {
  for (const known of rows.visible) {
    if (!isShown(known)) continue;
    g.globalAlpha = dim(known.rid);
    const until = begun(known) ?? known.first ?? known.finished, y = sharp(timeline.y(rows.of(known)));
    dottedLine(known.submitted, until, y);
    known.preempted.forEach((t, i) => dottedLine(t, known.resumed[i] ?? known.finished, y));
  }
  g.globalAlpha = 1;
}

/* When a request was first computed. Another server reports only at the end how long it waited. */
function begun({ scheduled, submitted, queue_ms: queue }) {
  return scheduled ?? (store.absent.steps && queue !== null ? submitted + queue : null);
}

function dottedLine(from, to, y) {
  const end = LEFT + timeline.plot, x0 = Math.max(LEFT, timeline.x(time.x(from)));
  const x1 = to === null ? end : Math.min(end, timeline.x(time.x(to)));
  if (from !== null && x1 - x0 > 2) pen.line(x0, y, x1, y, timeline.T.ink3, [1, 3]);
}

const isShown = (known) => rows.of(known) < timeline.shown;

/* Without steps: draw an answer as a stretch from token to token, and its prompt as one chunk if the server reported
 * how long it waited. Returns the number of tokens. */
function streams() {
  const { tokens } = store, { window } = timeline, open = new Map();
  let first = tokens.end, seen = 0;
  while (first > tokens.first && time.x(tokens.t[(first - 1) & tokens.mask]) >= window.x0) first--;
  const gaps = Array.from({ length: tokens.end - first }, (_, i) => tokens.itl_ms[(first + i) & tokens.mask]);
  const shade = timeline.byItl ? inkShades(gaps.filter((gap) => gap > 0), timeline.T, shades, "gap") : null;
  for (let i = first; i < tokens.end; i++) {
    const slot = i & tokens.mask, t = tokens.t[slot], rid = tokens.request_id[slot], row = rows.rowOf(rid);
    if (row < 0 || row >= timeline.shown) continue;
    seen++;
    const itl = tokens.itl_ms[slot] || 0, x1 = timeline.x(time.x(t));
    const x0 = Math.max(LEFT, Math.min(x1 - 0.7, timeline.x(time.x(t - itl))));
    const color = shade ? shade(itl) : rows.color(rid);
    extend(open, rid, { x0, x1, y: timeline.y(row), color });
  }
  for (const [rid, run] of open) stretch(rid, run);
  for (const known of rows.visible) {
    if (!isShown(known) || known.queue_ms === null || known.first === null) continue;
    const [x0, x1] = [begun(known), known.first].map((t) => timeline.x(time.x(t)));
    if (x1 > LEFT) chunk(known.rid, rows.of(known), Math.max(LEFT, x0), x1, rows.color(known.rid), true);
  }
  g.globalAlpha = 1;
  return seen;
}

/* Add a piece of a request to its stretch that is not drawn yet, or begin another where it does not continue that. */
function extend(open, rid, piece, apart = 0) {
  const run = open.get(rid);
  if (run && !apart && run.color === piece.color && piece.x0 - run.x1 < 1.2) run.x1 = piece.x1;
  else {
    if (run) stretch(rid, run);
    open.set(rid, { ...piece, x1: piece.x1 - apart });
  }
}

function stretch(rid, { x0, x1, y, color }) {
  const thin = Math.min(DECODE, timeline.rowHeight - 2);
  g.globalAlpha = dim(rid);
  pen.fill(color, x0, y - thin / 2, Math.max(0.7, x1 - x0), thin);
}

/* Chunks and decodes. Neighbouring decode steps are drawn as one stretch where they are too narrow to be told apart. */
function work(seen) {
  const { steps, entries } = store, open = new Map(), pixel = (timeline.window.x1 - timeline.window.x0) / timeline.plot;
  const durations = () => seen.map((slot) => steps.t1[slot] - steps.t0[slot]);
  const shade = timeline.byItl ? inkShades(durations(), timeline.T, shades, "step") : null;
  for (const slot of seen) {
    const t0 = steps.t0[slot], t1 = steps.t1[slot];
    const x0 = Math.max(LEFT, timeline.x(time.x(t0))), x1 = timeline.x(time.x(t1));
    const notch = (t1 - t0) / pixel > NOTCH_PX ? 0.7 : 0, took = shade && shade(t1 - t0);
    for (let k = 0, e = steps.first_entry[slot]; k < steps.entry_count[slot]; k++, e++) {
      if (e < entries.first) continue;
      const at = e & entries.mask, rid = entries.request_id[at], row = rows.rowOf(rid);
      if (row < 0 || row >= timeline.shown) continue;
      const color = took || rows.color(rid);
      if (entries.prompt_tokens[at] > 0) chunk(rid, row, x0, x1, color, true);
      else if (entries.decode_tokens[at] === 0) chunk(rid, row, x0, x1, color, false); // its prompt was there already
      else extend(open, rid, { x0, x1, y: timeline.y(row), color }, notch);
    }
  }
  for (const [rid, run] of open) stretch(rid, run);
  if (hasDrafts()) { for (const slot of seen) drawAccepted(g, slot, DECODE, dim); }
  g.globalAlpha = 1;
  return seen.length;
}

function chunk(rid, row, x0, x1, color, computed) {
  const high = Math.min(CHUNK, timeline.high(row) - 1.5), width = Math.max(1.4, x1 - x0 - 0.6);
  const top = timeline.y(row) - high / 2;
  g.globalAlpha = dim(rid);
  if (computed) pen.fill(color, x0, top, width, high);
  else {
    g.strokeStyle = color;
    g.lineWidth = 1;
    g.strokeRect(x0 + 0.5, top + 0.5, Math.max(0.5, width - 1), high - 1);
  }
}

function marks() {
  const { T } = timeline;
  for (const known of rows.visible) {
    if (!isShown(known)) continue;
    const y = timeline.y(rows.of(known));
    g.globalAlpha = dim(known.rid);
    if (known.finished !== null) {
      const color = known.reason === "error" || known.reason === "abort" ? T.ink3 : rows.color(known.rid);
      pen.fill(color, timeline.x(time.x(known.finished)), y - 3.5, 1.5, 7);
    }
    const radius = Math.min(6, timeline.high(rows.of(known)) / 2 + 1);
    for (const t of known.preempted) pen.diamond(timeline.x(time.x(t)), y, radius, T.surface, T.ink);
    for (const t of known.copied) drawCopy(timeline.x(time.x(t)), y);
  }
  g.globalAlpha = 1;
  const inView = (t) => time.x(t) >= timeline.window.x0;
  for (const { name, entry } of rare) entry.hidden = !rows.visible.some((known) => known[name].some(inView));
}

/* Outline all steps of a request that is selected as a whole. */
function outlineRequest() {
  const { selected } = pointing, known = selected && selected.step === null ? store.requests.get(selected.rid) : null;
  if (!known || !rows.visible.includes(known) || !isShown(known)) return;
  const row = rows.of(known), high = timeline.high(row), end = LEFT + timeline.plot;
  const x0 = timeline.x(time.x(known.submitted)) - 2;
  const x1 = known.finished === null ? end : Math.min(end, timeline.x(time.x(known.finished)) + 3);
  pen.frame(x0, timeline.y(row) - high / 2, x1 - x0, high, timeline.T.ink);
}

/* The mark of a copy-on-write: a square behind another. */
function drawCopy(x, y) {
  g.lineWidth = 1;
  for (const [dx, dy] of [[2, -4], [0, -2]]) {
    pen.fill(timeline.T.surface, sharp(x) + dx - 0.5, sharp(y) + dy - 0.5, 6, 6);
    g.strokeStyle = timeline.T.ink;
    g.strokeRect(sharp(x) + dx, sharp(y) + dy, 5, 5);
  }
}

// ---- words ----------------------------------------------------------------------------------------------
function labels() {
  const { T } = timeline, every = Math.ceil(10 / timeline.rowHeight);
  if (!store.absent.queue) {
    pen.text("run", LEFT - 6, 28, T.ink3, "right");
    pen.text("wait", LEFT - 6, 40, T.ink3, "right");
  }
  for (let row = 0; row < timeline.shown; row++) {
    const y = Math.round(timeline.y(row)), color = T.hues[row % T.hues.length];
    if (row < rows.lanes) pen.badge(String(row + 1), LEFT - 24, y - 6, 12, color, textOn(color));
    else if ((row - rows.lanes) % every === 0) pen.text(String(row + 1), LEFT - 12, y + 3.5, T.ink3, "right");
  }
  const more = rows.count - timeline.shown;
  if (more > 0) pen.text(`${more} more`, LEFT + timeline.plot, timeline.height - BOTTOM - 3, T.ink3, "right");
}

function knobs() {
  const { T, window } = timeline, marks = knobMarks(window.x0, window.x1);
  const at = (mark) => sharp(timeline.x(mark.x));
  for (const mark of marks) pen.line(at(mark), 0, at(mark), timeline.height - BOTTOM, T.rose);
  for (const { mark, x, left } of flagWords(marks, at, LEFT, timeline.width, [])) {
    pen.text(mark.text, left ? x - 5 : x + 5, 10, T.rose, left ? "right" : "left", true);
  }
  for (const cut of time.cuts) {
    const at = cut.from - cut.before, x = sharp(timeline.x(at));
    if (at > window.x0 && at < window.x1) pen.line(x, TOP - 4, x, timeline.height - BOTTOM, T.line2, [2, 3]);
  }
}

function sub(span) {
  const { zoom } = view;
  const words = zoom ? `${((zoom.x1 - zoom.x0) / 1000).toFixed(2)} s` : `last ${span / 1000} s`;
  write(panel.subtitle, words);
}

function legend() {
  /** @returns {import("../shared/dom.js").Shape} */
  const bar = (x, width, height) => ["rect", { x, width, height, fill: "var(--rp-ink2)" }];
  /** @returns {import("../shared/dom.js").Shape} */
  const path = (d, fill) => ["path", { d, fill, stroke: "var(--rp-ink)" }];
  return [
    [svg(9, 12, bar(0, 3, 12), bar(5, 3, 12)), "prompt chunk", "rp-of-steps"],
    [svg(12, 4, bar(0, 12, 3)), "decode", ""],
    [svg(12, 12, path("M6 1l5 5l-5 5l-5 -5z", "var(--rp-surface)")), "preempted", "rp-roomy rp-of-steps rp-preempted"],
    [legendLine("ink3", 1, "1 2", 12), waitWord, "rp-roomy"],
    [svg(9, 9, path("M2.5 2.5v-2h6v6h-2M.5 2.5h6v6h-6z", "none")), "copied", "rp-roomy rp-copied"],
  ].map((entry) => legendEntry(...entry));
}
