/* The engine at work, one step at a time: the requests that wait, as long as their prompts; the step, packed with its
 * tokens; below, the KV blocks. The limits of the scheduler stand where they act, and can be dragged there. Before
 * anything has run, it plays the recording that comes with the page.
 *
 * Pointing emits "hover"; a click emits "select", or opens a block's details. */
import { blocks } from "../shared/blocks.js";
import { make, svg, write } from "../shared/dom.js";
import { emit, on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { legendBox, legendEntry } from "../shared/legend.js";
import { Panel } from "../shared/panel.js";
import { settingAt, slowed } from "../shared/past.js";
import { sharp } from "../shared/pen.js";
import { pointNowhere, standsBack } from "../shared/pointing.js";
import { popover } from "../shared/popover.js";
import { laneOf } from "../shared/store.js";
import { fade, hueAt, palette, textOn } from "../shared/theme.js";
import { clock } from "../shared/time.js";
import { about } from "../live/cellinfo.js";
import { cellAt, cellsOf, cellUnder, GAP_PX, layOutBox, limitPath, slotAt, slotsOf, slotUnder } from "./box.js";
import { Handle } from "./handle.js";
import { waitingAt } from "./scene.js";
import { caption, choose, RECORDED, shown, SLOWEST } from "./shown.js";

/** @import { Scene, Ticket } from "./scene.js" */

const NOTHING = "The next step's tokens come here: of prompts, and one for each answer.";
const FAR = 4; // a budget that is this many times as high as all steps does not shrink the cells
const EDGE = 12, HANDLES = 84, APART = 16, TOP = 8, CAPTION = 24, RIBBON = 14, LEAST_RUN = 1.5, FLIGHT_MS = 350;
const TICKET = { high: 14, least: 5, wide: 104, narrow: 76, short: 16, apart: 2 }, HEAD = 18, NARROW = 480, HANDLE = 19;
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

const ABOUT = { [RECORDED]: ", of a recording", [SLOWEST]: ", the slowest shown" };

let panel = null, pen = null, T = palette(), handles = [], took = null, mark = null;
/** @type {{slots: import("./box.js").Grid, cells: import("./box.js").Grid} | null} */
let box = null;
let cells = []; // the part that each filled cell belongs to
let tickets = new Map(); // the places of requests that wait: [x, y]
const flying = new Set(); // requests with a dot on its way
let spots = []; // what can be pointed at: {x, y, w, h} with a `rid`, or the first `block` of a run

export function mount(element) {
  const describe = () => `This step${ABOUT[shown.kind] ?? ""}. ${caption()}`.trim();
  panel = new Panel(element, { name: "stage", canvas: "rp-stage", every: 1, follows: true, draw, describe });
  ({ pen } = panel);
  const tokensAt = (_, y) => (y < box.cells.y0 ? null : Math.max(1, rowsUnder(y) * box.cells.columns * box.cells.per));
  const open = svg(8, 8, ["rect", { x: 0.5, y: 0.5, width: 7, height: 7, fill: "none", stroke: "var(--rp-ink2)" }]);
  handles = [
    new Handle("prefill_max_tokens", "budget", tokensAt),
    new Handle("max_batch_size", "batch", (x, y) => (slotUnder(box.slots, x, y) + 1) * box.slots.per),
  ];
  [took, mark] = [make("b"), make("span", "rp-mark")];
  panel.show(legendEntry(open, "prompt", "rp-roomy"), legendEntry(legendBox("ink2"), "answer", "rp-roomy"), mark, took);
  panel.plot.append(...handles.map(({ element }) => element));
  listen(panel.canvas);
  on("step", panel.soon);
}

const rowsUnder = (y) => Math.round((box.cells.y1 - y) / box.cells.pitch);

// ---- drawing ----------------------------------------------------------------------------------------------
function draw(width, height) {
  const before = tickets, other = choose(), { scene, knobs } = shown;
  T = palette();
  pen.begin(width, height);
  const wide = width < NARROW ? TICKET.narrow : TICKET.wide, bottom = height - RIBBON - CAPTION - 6;
  const area = { x0: EDGE + wide + APART, x1: width - HANDLES, y0: TOP, y1: bottom };
  if (!box || !handles.some(({ dragged }) => dragged)) box = layOutBox(area, batchOf(knobs), roomFor(knobs));
  spots = [];
  tickets = new Map();
  cells = cellsOf(scene?.parts ?? [], box.cells.per);
  drawBox(area);
  if (scene) drawTokens(scene);
  drawLimits(knobs);
  drawWaiting(scene ? scene.waiting : waitingAt(clock()), wide, bottom);
  drawRibbon(scene?.kv ?? [], width, height);
  if (scene) {
    pen.words(caption(), width < NARROW ? EDGE : area.x0 - 6, bottom + 18, '400 11px "RP Sans", sans-serif', T.ink2);
  } else pen.note(NOTHING, (area.x0 + area.x1) / 2, (box.cells.y0 + area.y1) / 2);
  head();
  if (other && scene && !reducedMotion.matches) fly(before, scene);
}

const batchOf = (knobs) => Math.max(1, knobs.max_batch_size ?? 1);

/* How many tokens of prompts there must be room for. */
function roomFor(knobs) {
  const budget = knobs.prefill_max_tokens ?? null;
  return Math.max(shown.most, budget !== null && budget <= FAR * shown.most ? budget : 0);
}

function head() {
  const { scene, kind } = shown, { t0 = 0, t1 = 0, step = 0 } = scene ?? {};
  write(took, scene ? format.amount(t1 - t0) : "");
  write(mark, kind === RECORDED ? "recorded" : scene ? slowed(t1) : "");
  write(panel.subtitle, scene && kind !== RECORDED ? `#${format.count(step)}${ABOUT[kind] ?? ""}${limitsAt(t1)}` : "");
}

/* The limits that a step had, of those that are others now. */
const limitsAt = (t) =>
  handles.map(({ knob, name }) => ({ name, was: settingAt(knob, t), now: shown.knobs[knob] }))
    .map(({ name, was, now }) => (was === now ? "" : `, ${name} ${format.limit(was)}`)).join("");

function drawBox({ x0, x1, y1 }) {
  pen.fill(T.bg, x0 - 6, 2, x1 - x0 + 12, y1 + 4);
  pen.frame(x0 - 6, 2, x1 - x0 + 12, y1 + 4, T.line2);
  const { slots } = box, side = slots.pitch - 2;
  for (let i = 0; i * slots.per < batchOf(shown.knobs); i++) {
    const [x, y] = slotAt(slots, i);
    pen.fill(T.free, x, y, side, side);
  }
}

/** @param {import("./scene.js").Who} who */
const colorOf = ({ rid, lane }) => T.hues[hueAt(rid, lane)];

/** @param {Scene} scene */
function drawTokens({ parts }) {
  const { slots } = box, { g } = pen, side = slots.pitch - 2, high = box.cells.pitch - 1;
  slotsOf(parts).filter((_, i) => i % slots.per === 0).forEach((part, i) => {
    const [x, y] = slotAt(slots, i), hue = colorOf(part);
    g.globalAlpha = standsBack(part.rid) ? 0.25 : 1;
    if (part.decode) pen.fill(hue, x, y, side, side);
    else pen.frame(x + 1, y + 1, side - 2, side - 2, hue);
    if (part.decode && part.lane !== null && side >= 10) pen.badge(String(part.lane), x, y, side, hue, textOn(hue));
    spots.push({ x, y, w: slots.pitch, h: slots.pitch, rid: part.rid });
  });
  cells.forEach((part, i) => {
    const [x, y] = cellAt(box.cells, i);
    g.globalAlpha = standsBack(part.rid) ? 0.25 : 1;
    pen.fill(colorOf(part), x, y, high, high);
  });
  g.globalAlpha = 1;
}

/* The budget, as a line that no prompt token is above, and the batch, as the end of the slots. */
function drawLimits(knobs) {
  const { slots, cells: { x0, x1, y0 } } = box, budget = knobs.prefill_max_tokens ?? null;
  const line = budget === null ? [] : limitPath(box.cells, budget), [, at] = line[line.length - 1] ?? [0, -Infinity];
  const y = Math.max(y0 - GAP_PX / 2, at);
  pen.path(at >= y0 ? line : [[x0, y], [x1, y]], T.rose, 1.25, [4, 3]);
  pen.path([[x1, y], [x1 + 10, y]], T.rose, 1.25);
  handles[0].show(y, budget);
  const last = Math.ceil(batchOf(knobs) / slots.per) - 1, [x, top] = slotAt(slots, last);
  pen.fill(T.rose, x + slots.pitch - 1.5, top - 2, 2, slots.pitch + 2);
  handles[1].show(Math.min(slots.y0 + slots.pitch / 2 - 1, y - HANDLE), knobs.max_batch_size ?? null);
}

/** @param {Ticket[]} waiting */
function drawWaiting(waiting, wide, bottom) {
  const { apart } = TICKET,
    high = Math.max(TICKET.least, Math.min(TICKET.high, (bottom - HEAD) / waiting.length - apart));
  const fits = Math.max(1, Math.floor((bottom - HEAD) / (high + apart))), left = waiting.length - fits;
  const longest = Math.max(1, ...waiting.map(({ tokens }) => tokens));
  const x = pen.words("waiting ", EDGE, 12, '400 11px "RP Sans", sans-serif', T.ink3);
  pen.words(format.count(waiting.length), x, 12, '700 11px "RP Mono", monospace', T.ink);
  waiting.slice(0, left > 0 ? fits - 1 : fits).forEach(({ rid, lane, tokens }, i) => {
    const y = HEAD + i * (high + apart), w = TICKET.short + (wide - TICKET.short) * (tokens / longest);
    const color = colorOf({ rid, lane });
    pen.fill(fade(color, standsBack(rid) ? 0.1 : 0.3), EDGE, y, w, high);
    pen.fill(color, EDGE, y, 3, high);
    if (high >= 12) pen.words(`#${rid}`, EDGE + 6, y + high - 3, '400 10px "RP Mono", monospace', T.ink2);
    spots.push({ x: EDGE, y, w: wide, h: high + apart, rid });
    tickets.set(rid, [EDGE + 8, y + 4]);
  });
  if (left > 0) pen.text(`+ ${format.count(left + 1)} more`, EDGE, bottom - 2, T.ink3);
}

function drawRibbon(runs, width, height) {
  const total = runs.reduce((sum, { count }) => sum + count, 0), y = height - RIBBON - 4, label = EDGE + 26;
  pen.text("KV", EDGE, y + 11, T.ink3);
  let x = label;
  const room = width - EDGE - label, { g } = pen;
  pen.fill(T.free, x, y, room, RIBBON);
  for (const { kind, rid, count, block } of runs.filter(({ kind }) => kind !== blocks.FREE)) {
    const w = Math.max(LEAST_RUN, (room * count) / total),
      color = kind === blocks.SHARED ? T.shared : rid < 0 ? T.decode : colorOf({ rid, lane: laneOf(rid) });
    if (kind === blocks.CACHED) {
      g.strokeStyle = T.cachedline;
      g.strokeRect(sharp(x), sharp(y), Math.max(1, w - 2), RIBBON - 1);
    } else pen.fill(color, x, y, Math.max(1, w - 0.7), RIBBON);
    if (block) spots.push({ x, y, w, h: RIBBON, block });
    x += w;
  }
}

// ---- requests on their way --------------------------------------------------------------------------------
/* A dot for each request that has left the queue, and for tokens that go to a lane; one at a time for a request. */
function fly(before, { parts }) {
  const { slots } = box;
  slotsOf(parts).forEach((part, i) => {
    const ticket = before.get(part.rid), color = colorOf(part), slot = slotAt(slots, Math.floor(i / slots.per));
    if (part.prompt && ticket) dot(part.rid, ticket, cellAt(box.cells, Math.max(0, cells.indexOf(part))), color);
    if (part.decode && part.lane !== null) dot(part.rid, slot, [box.cells.x1, slots.y0], color);
  });
}

function dot(rid, [x0, y0], [x1, y1], color) {
  if (flying.has(rid)) return;
  flying.add(rid);
  const element = make("i", { className: "rp-flight", style: `background: ${color}` });
  const at = (x, y) => ({ transform: `translate(${x}px, ${y}px)` });
  panel.plot.append(element);
  element.animate([at(x0, y0), at(x1, y1)], { duration: FLIGHT_MS, easing: "ease-in-out" });
  setTimeout(() => {
    element.remove();
    flying.delete(rid);
  }, FLIGHT_MS); // in a tab behind others, no animation ends
}

// ---- pointing ---------------------------------------------------------------------------------------------
/* What is at a point: a request, or a run of blocks; nothing of a recording. */
function spotAt({ offsetX: x, offsetY: y }) {
  if (shown.kind === RECORDED) return undefined;
  const within = ({ x0, x1, y0, y1 }) => x >= x0 && x < x1 && y >= y0 && y < y1;
  const spot = spots.find((one) => within({ x0: one.x, x1: one.x + one.w, y0: one.y, y1: one.y + one.h }));
  if (spot || !box || !within(box.cells)) return spot;
  const part = cells[cellUnder(box.cells, x, y)];
  return part && { rid: part.rid };
}

function listen(canvas) {
  canvas.addEventListener("pointermove", (event) => {
    const spot = spotAt(event);
    canvas.style.cursor = spot ? "pointer" : "";
    emit("hover", spot?.rid ?? null);
  });
  canvas.addEventListener("pointerleave", pointNowhere);
  canvas.addEventListener("click", (event) => {
    const spot = spotAt(event), { clientX: x, clientY: y } = event;
    if (spot?.block) popover.open({ ...about(Int32Array.of(spot.block)), x, y });
    else if (spot) {
      const computes = shown.scene?.parts.some(({ rid }) => rid === spot.rid);
      emit("select", { rid: spot.rid, step: computes ? shown.scene.step : null, x, y });
    } else emit("select", null);
  });
}
