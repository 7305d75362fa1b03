/* Every KV block in the pool's order or grouped by request, on a canvas. Filled in its owner's hue; inverted with its
 * number of holders and the owner's hue as a foot when shared; hollow when cached; light when free. Pointing at a
 * block emits "hover" with its owner; a click, or Enter after the arrow keys, opens what is known of it. */
import { blocks } from "../shared/blocks.js";
import { make, onKeys, write } from "../shared/dom.js";
import { emit } from "../shared/events.js";
import { format } from "../shared/format.js";
import { segmented } from "../shared/legend.js";
import { createPen } from "../shared/pen.js";
import { pointing, standsBack } from "../shared/pointing.js";
import { popover } from "../shared/popover.js";
import { laneOf, store } from "../shared/store.js";
import { colorOf, palette } from "../shared/theme.js";
import { blockInfo } from "./blockinfo.js";
import { blockLegend } from "./blocklegend.js";
import { blockSentence, blockTable } from "./blocktable.js";
import { createPanel } from "./panel.js";

const NOTHING = "One cell a block: the memory of a few tokens.";
const LEFT = 38, PHONE_LEFT = 30, PHONE_PX = 480, RIGHT = 4, TOP = 2;
const COLUMNS = 64, PHONE_COLUMNS = 32, PITCH = 8, HIGH = 15, MOST_DIGIT_ROWS = 12, LABEL_PX = 10;
const OTHERS_ALPHA = 0.74, DIM = 0.25;
const PERHAPS = 0.6; // who besides the owner shares a block is not in the frames
const FOOT = 2, DIGIT_PITCH = 9; // cells lower than this carry no digits
// 3x5 pixels each, a row an octal digit
const DIGITS = "75557 26227 71747 71717 55711 74717 74757 71111 75757 75717".split(" ");
const PLUS = "02720";
const KIND_WORDS = ["free", "cached", "one owner", "shared"];

const state = { grouped: false, order: null, place: null, T: null, at: null, cursor: 0, idle: true };
let canvas = null, said = null, subtitle = null, pen = null, g = null, panel = null, showCounts = null;
let summary = "";

export function mount(element) {
  canvas = make("canvas", { className: "rp-blocks", tabIndex: 0 });
  said = make("span", { className: "rp-said", role: "status" });
  const plot = element.querySelector(".rp-plot"), table = blockTable();
  subtitle = element.querySelector(".rp-sub");
  plot.append(canvas, said);
  pen = createPen(canvas);
  g = pen.g;
  const order = segmented("order of blocks", ["physical", "by request"], (word) => {
    state.grouped = word !== "physical";
    panel.soon();
  });
  element.querySelector(".rp-rt").replaceChildren(order, table.button);
  table.bind(element);
  showCounts = blockLegend(plot);
  const describe = () => `KV blocks. ${summary}`;
  panel = createPanel(canvas, { name: "blockmap", every: 2, follows: true, keys: true, draw, describe });
  listen();
}

// ---- places ---------------------------------------------------------------------------------------------
/* Columns and pitch for so many blocks: the usual cells where they fit, then lower ones, then ever smaller squares. */
function layout(width, height, total) {
  const narrow = width < PHONE_PX, left = narrow ? PHONE_LEFT : LEFT, room = height - TOP;
  const columns = narrow ? PHONE_COLUMNS : COLUMNS, rows = Math.max(1, Math.ceil(total / columns));
  const dx = narrow ? Math.floor((width - left - RIGHT) / columns) : PITCH;
  const high = Math.min(HIGH, Math.floor(room / rows)), least = narrow ? Math.min(PITCH, dx) : PITCH;
  if (high >= least) return placed(left, columns, rows, dx, !narrow && rows > MOST_DIGIT_ROWS ? PITCH : high);
  const wide = columns * dx;
  let d = least - 1;
  while (d > 2 && Math.floor(wide / d) * Math.floor(room / d) < total) d--;
  const many = Math.floor(wide / d);
  return placed(left, many, Math.min(Math.ceil(total / many), Math.floor(room / d)), d, d);
}

const placed = (left, columns, rows, dx, dy) => {
  return { left, columns, rows, dx, dy, gap: Math.min(dx, dy) > 2 ? 1 : 0, shown: columns * rows };
};

/* Blocks in the order in which they are drawn: as numbered, or by request, then the cached, then the free. */
function ordered(total) {
  const order = Int32Array.from({ length: total }, (_, i) => i + 1);
  if (!state.grouped) return order;
  const unowned = (block) => (blocks.kind(block) === blocks.CACHED ? 2 ** 40 : 2 ** 41);
  const group = (block) => (blocks.owner[block] >= 0 ? blocks.owner[block] : unowned(block));
  return order.sort((a, b) => group(a) - group(b) || a - b);
}

/**
 * The place of the block at an index of the order: x, y, width and height.
 * @returns {[number, number, number, number]}
 */
function box(index) {
  const { left, columns, dx, dy, gap } = state.place;
  const high = dy - gap - (dy === HIGH ? 1 : 0);
  return [left + (index % columns) * dx, TOP + Math.floor(index / columns) * dy, dx - gap, high];
}

/** The block at a point of the canvas, or null. */
function blockAt(px, py) {
  if (!state.place || !state.order) return null;
  const { left, columns, dx, dy, shown } = state.place;
  const column = Math.floor((px - left) / dx), row = Math.floor((py - TOP) / dy), index = row * columns + column;
  const inside = column >= 0 && column < columns && row >= 0 && index < Math.min(shown, state.order.length);
  return inside ? state.order[index] : null;
}

// ---- drawing --------------------------------------------------------------------------------------------
function draw(width, height) {
  pen.begin(width, height);
  const { total } = blocks;
  Object.assign(state, { T: palette(), order: ordered(total), place: layout(width, height, total) });
  const { rows, columns, dy, shown } = state.place, { T } = state, counts = blocks.counts();
  state.idle = !counts.active && !counts.shared;
  for (let i = 0; i < Math.min(total, shown); i++) cell(state.order[i], box(i));
  g.globalAlpha = 1;
  outlineOwned(Math.min(total, shown));
  const every = Math.ceil(LABEL_PX / dy);
  for (let row = 0; !state.grouped && total && row < rows; row += every) {
    const y = TOP + row * dy + Math.min(dy, LABEL_PX) - 1;
    pen.text(String(row * columns + 1), state.place.left - 8, y, T.ink3, "right");
  }
  ring();
  if (state.idle && !counts.cached) pen.note(NOTHING, width / 2, TOP + (rows * dy) / 2);
  showCounts(counts);
  sub(total, shown);
  summary = `${blockSentence()} Arrow keys choose a block, Enter opens it.`;
}

function cell(block, [x, y, w, h]) {
  const { T } = state, kind = blocks.kind(block), owner = blocks.owner[block];
  g.globalAlpha = opacity(kind, owner);
  if (kind === blocks.FREE) fill(T.free, x, y, w, h);
  else if (kind === blocks.CACHED) hollow(x, y, w, h);
  else if (kind === blocks.ACTIVE) fill(colorOf(owner), x, y, w, h);
  else shared(blocks.references[block], owner, x, y, w, h);
}

function opacity(kind, owner) {
  if (standsBack(owner)) return kind === blocks.SHARED ? PERHAPS : DIM;
  const quiet = kind === blocks.ACTIVE && laneOf(owner) === null && owner !== pointing.rid && !pointing.selected;
  return quiet ? OTHERS_ALPHA : 1;
}

function fill(color, x, y, w, h) {
  g.fillStyle = color;
  g.fillRect(x, y, w, h);
}

/* Faint where no request holds a block: what is left in the cache is no news. */
function hollow(x, y, w, h) {
  fill(state.idle ? state.T.line : state.T.cachedline, x, y, w, h);
  if (Math.min(w, h) > 2) fill(state.T.surface, x + 1, y + 1, w - 2, h - 2);
}

function shared(references, owner, x, y, w, h) {
  fill(state.T.shared, x, y, w, h);
  if (h > FOOT + 1) fill(colorOf(owner), x, y + h - FOOT, w, FOOT);
  if (state.place.dy < DIGIT_PITCH || w < 5) return;
  digit(references > 9 ? PLUS : DIGITS[references], x + Math.floor((w - 3) / 2), y + Math.floor((h - FOOT - 5) / 2));
}

function digit(rows, x, y) {
  g.fillStyle = state.T.surface;
  for (let row = 0; row < 5; row++) {
    for (let column = 0; column < 3; column++) {
      if (Number(rows[row]) & (4 >> column)) g.fillRect(x + column, y + row, 1, 1);
    }
  }
}

/* Around the blocks of the request that is selected as a whole. */
function outlineOwned(count) {
  const { selected } = pointing;
  if (!selected || selected.step !== null) return;
  for (let i = 0; i < count; i++) {
    const block = state.order[i];
    if (blocks.owner[block] === selected.rid && blocks.references[block] > 0) outline(i);
  }
}

/* Around the block that is pointed at, chosen by the keys, or open. */
function ring() {
  const block = state.at ?? (document.activeElement === canvas || popover.name === "block" ? state.cursor : 0);
  const index = block ? state.order.indexOf(block) : -1;
  if (index >= 0 && index < state.place.shown) outline(index);
}

function outline(index) {
  const [x, y, w, h] = box(index);
  g.strokeStyle = state.T.ink;
  g.lineWidth = 1.5;
  g.strokeRect(x - 0.75, y - 0.75, w + 1.5, h + 1.5);
}

function sub(total, shown) {
  const { info } = store, { count } = format;
  const size = info && info.block_size ? ` × ${info.block_size} tokens` : "";
  const blocksShown = shown < total ? `first ${count(shown)} of ${count(total)}` : count(total);
  write(subtitle, total ? blocksShown + size + states() : "");
}

/* Of a model with recurrent layers: what its requests hold beside blocks, and what the prefix cache keeps of it. */
function states() {
  const { info, stats } = store, { count } = format;
  if (!info?.state_slots || stats?.state_slots == null) return "";
  const kept = info.state_snapshots ? `, ${count(stats.states_kept)} / ${count(info.state_snapshots)} kept` : "";
  return ` · states ${count(stats.state_slots)} / ${count(info.state_slots)}${kept}`;
}

// ---- pointing -------------------------------------------------------------------------------------------
function listen() {
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "touch") point(blockAt(event.offsetX, event.offsetY));
  });
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => {
    const block = blockAt(event.offsetX, event.offsetY);
    if (block !== null) show(block);
  });
  canvas.addEventListener("focus", panel.soon);
  canvas.addEventListener("blur", () => {
    point(null);
    panel.soon();
  });
  onKeys(canvas, pressed);
}

function pressed(event) {
  if (!state.order || !blocks.total) return false;
  const { columns, shown } = state.place, last = Math.min(shown, blocks.total) - 1;
  const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, Home: -Infinity, End: Infinity };
  const index = state.order.indexOf(state.cursor);
  if (event.key === "Enter" || event.key === " ") show(state.order[Math.max(0, index)]);
  else if (event.key in moves) move(index < 0 ? 0 : Math.max(0, Math.min(last, index + moves[event.key])));
  else return false;
  return true;
}

function point(block) {
  if (state.at === block) return;
  state.at = block;
  emit("hover", block === null || blocks.owner[block] < 0 ? null : blocks.owner[block]);
  panel.soon();
}

function show(block) {
  const [x, y, w, h] = box(state.order.indexOf(block)), rect = canvas.getBoundingClientRect();
  state.cursor = block;
  blockInfo(block, rect.left + x + w / 2, rect.top + y + h / 2, panel.soon);
  panel.soon();
}

function move(index) {
  if (popover.name === "block") popover.close();
  const block = (state.cursor = state.order[index]), owner = blocks.owner[block], n = blocks.references[block];
  point(block);
  const holders = `${n > 1 ? ` by ${n}` : ""}${owner >= 0 ? `, #${owner}` : ""}`;
  write(said, `Block ${block}: ${KIND_WORDS[blocks.kind(block)]}${holders}`);
}
