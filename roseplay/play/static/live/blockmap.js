/* Every KV block in the pool's order or grouped by request, on a canvas; below them, of a model with recurrent layers,
 * its state slots and kept states. Filled in its owner's hue; inverted with its number of holders and the owner's hue
 * as a foot when shared; hollow when cached or kept; light when free. Pointing at a cell emits "hover" with its owner;
 * a click, or Enter after the arrow keys, opens what is known of it. */
import { blocks } from "../shared/blocks.js";
import { make, onKeys, write } from "../shared/dom.js";
import { emit } from "../shared/events.js";
import { format } from "../shared/format.js";
import { segmented } from "../shared/legend.js";
import { createPen } from "../shared/pen.js";
import { pointing, standsBack } from "../shared/pointing.js";
import { popover } from "../shared/popover.js";
import { states } from "../shared/states.js";
import { laneOf, store } from "../shared/store.js";
import { colorOf, palette } from "../shared/theme.js";
import { blockInfo } from "./blockinfo.js";
import { blockLegend } from "./blocklegend.js";
import { blockSentence, blockTable } from "./blocktable.js";
import { cellBeside, KEYS, layOut } from "./cellgrid.js";
import { createPanel } from "./panel.js";
import { stateInfo, stateName, stateWords } from "./stateinfo.js";

const NOTHING = "One cell a block: the memory of a few tokens.";
const LABEL_PX = 10, LABEL_APART = 8, SLOT_LABEL_APART = 4;
const OTHERS_ALPHA = 0.74, DIM = 0.25;
const PERHAPS = 0.6; // who besides the owner shares a block is not in the frames
const OPENED = ["block", "state"]; // popovers
const FOOT = 2, DIGIT_PITCH = 9; // cells lower than this carry no digits
// 3x5 pixels each, a row an octal digit
const DIGITS = "75557 26227 71747 71717 55711 74717 74757 71111 75757 75717".split(" ");
const PLUS = "02720";
const KIND_WORDS = ["free", "cached", "one owner", "shared"];

/** @type {{grouped: boolean, grids: import("./cellgrid.js").Grid[], [name: string]: any}} */
const state = { grouped: false, grids: [], T: null, at: null, cursor: 0, idle: true };
let canvas = null, said = null, subtitle = null, pen = null, g = null, panel = null;
let showCounts = null, showStates = null, summary = "";

export function mount(element) {
  canvas = make("canvas", { className: "rp-blocks", tabIndex: 0 });
  said = make("span", { className: "rp-said", role: "status" });
  const plot = element.querySelector(".rp-plot"), table = blockTable();
  subtitle = element.querySelector(".rp-sub");
  subtitle.append(make("span"), make("span", "rp-roomy"));
  plot.append(canvas, said);
  pen = createPen(canvas);
  g = pen.g;
  const order = segmented("order of blocks", ["physical", "by request"], (word) => {
    state.grouped = word !== "physical";
    panel.soon();
  });
  element.querySelector(".rp-rt").replaceChildren(order, table.button);
  table.bind(element);
  [showCounts, showStates] = blockLegend(plot);
  const describe = () => `KV blocks. ${summary}`;
  panel = createPanel(canvas, { name: "blockmap", every: 2, follows: true, keys: true, draw, describe });
  listen();
}

// ---- cells ----------------------------------------------------------------------------------------------
/* Cells are known by their numbers: blocks by their own, slots of states by those behind the last block. */
const slotOf = (cell) => cell - blocks.total;

const isBlock = (cell) => cell <= blocks.total;

function kindOf(cell) {
  if (isBlock(cell)) return blocks.kind(cell);
  const slot = slotOf(cell);
  return states.request[slot] < 0 ? blocks.FREE : states.isKept(slot) ? blocks.CACHED : blocks.ACTIVE;
}

/* The request whose hue a cell has, -1: none. */
function ownerOf(cell) {
  if (isBlock(cell)) return blocks.owner[cell];
  return states.isKept(slotOf(cell)) ? -1 : states.request[slotOf(cell)];
}

/* Blocks in the order in which they are drawn: as numbered, or by request, then the cached, then the free. */
function ordered(total) {
  const order = Int32Array.from({ length: total }, (_, i) => i + 1);
  if (!state.grouped) return order;
  const unowned = (block) => (blocks.kind(block) === blocks.CACHED ? 2 ** 40 : 2 ** 41);
  const group = (block) => (blocks.owner[block] >= 0 ? blocks.owner[block] : unowned(block));
  return order.sort((a, b) => group(a) - group(b) || a - b);
}

/* Of a model with recurrent layers: the slots of running requests, and those of kept states. */
function slotGroups() {
  const numbered = (from, to) => Int32Array.from({ length: to - from }, (_, i) => blocks.total + from + i + 1);
  return [numbered(0, states.slots), numbered(states.slots, states.total)].filter((group) => group.length);
}

/** The cell at a point of the canvas, or null. */
function cellAt(px, py) {
  for (const grid of state.grids) {
    const cell = grid.at(px, py);
    if (cell !== null) return cell;
  }
  return null;
}

/** The grid that a cell lies in, and its index there; null where it is not shown. */
function placeOf(cell) {
  for (const grid of state.grids) {
    const index = grid.cells.indexOf(cell);
    if (index >= 0) return { grid, index };
  }
  return null;
}

// ---- drawing --------------------------------------------------------------------------------------------
function draw(width, height) {
  pen.begin(width, height);
  const { total } = blocks, counts = blocks.counts();
  Object.assign(state, { T: palette(), grids: layOut(width, height, ordered(total), slotGroups()) });
  const [grid] = state.grids;
  state.idle = !counts.active && !counts.shared;
  for (const one of state.grids) one.cells.forEach((cell, i) => drawCell(cell, one.box(i), one));
  g.globalAlpha = 1;
  outlineOwned();
  labels();
  ring();
  if (state.idle && !counts.cached) pen.note(NOTHING, width / 2, (grid.top + grid.bottom) / 2);
  showCounts(counts);
  sub(total, grid.cells.length);
  summary = `${blockSentence()} Arrow keys choose a block, Enter opens it.`;
}

/* The number of the first block in a row; what lies below the blocks says what it is. */
function labels() {
  const [grid, ...below] = state.grids, { T } = state;
  const label = (words, { left, top, dy }, row, apart) => {
    pen.text(words, left - apart, top + row * dy + Math.min(dy, LABEL_PX) - 1, T.ink3, "right");
  };
  const every = Math.ceil(LABEL_PX / grid.dy);
  for (let row = 0; !state.grouped && grid.cells.length && row < grid.rows; row += every) {
    label(String(row * grid.columns + 1), grid, row, LABEL_APART);
  }
  for (const one of below.filter(({ cells }) => cells.length)) {
    label(states.isKept(slotOf(one.cells[0])) ? "kept" : "slots", one, 0, SLOT_LABEL_APART);
  }
}

function drawCell(cell, [x, y, w, h], grid) {
  const { T } = state, kind = kindOf(cell), owner = ownerOf(cell);
  g.globalAlpha = opacity(kind, owner);
  if (kind === blocks.FREE) fill(T.free, x, y, w, h);
  else if (kind === blocks.CACHED) hollow(x, y, w, h);
  else if (kind === blocks.ACTIVE) fill(colorOf(owner), x, y, w, h);
  else shared(blocks.references[cell], owner, x, y, w, h, grid.dy >= DIGIT_PITCH && w >= 5);
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

function shared(references, owner, x, y, w, h, numbered) {
  fill(state.T.shared, x, y, w, h);
  if (h > FOOT + 1) fill(colorOf(owner), x, y + h - FOOT, w, FOOT);
  if (!numbered) return;
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

/* Around what the request holds that is selected as a whole. */
function outlineOwned() {
  const { selected } = pointing;
  if (!selected || selected.step !== null) return;
  for (const grid of state.grids) {
    grid.cells.forEach((cell, i) => {
      if (ownerOf(cell) === selected.rid && kindOf(cell) >= blocks.ACTIVE) outline(grid.box(i));
    });
  }
}

/* Around the cell that is pointed at, chosen by the keys, or open. */
function ring() {
  const chosen = document.activeElement === canvas || OPENED.includes(popover.name);
  const found = placeOf(state.at ?? (chosen ? state.cursor : 0));
  if (found) outline(found.grid.box(found.index));
}

function outline([x, y, w, h]) {
  g.strokeStyle = state.T.ink;
  g.lineWidth = 1.5;
  g.strokeRect(x - 0.75, y - 0.75, w + 1.5, h + 1.5);
}

function sub(total, shown) {
  const { info } = store, { count } = format;
  const size = info && info.block_size ? ` × ${info.block_size} tokens` : "";
  const blocksShown = shown < total ? `first ${count(shown)} of ${count(total)}` : count(total);
  const counted = stateCounts();
  write(subtitle.firstElementChild, total ? blocksShown + size : "");
  write(subtitle.lastElementChild, counted && ` · ${counted}`);
  showStates(counted);
}

/* Of a model with recurrent layers: what its requests hold beside blocks, and what the prefix cache keeps of it. */
function stateCounts() {
  const { slots, total } = states, { count } = format, n = states.counts();
  if (!total) return "";
  return `state slots ${count(n.used)} / ${count(slots)}` +
    (total > slots ? `, kept ${count(n.kept)} / ${count(total - slots)}` : "");
}

// ---- pointing -------------------------------------------------------------------------------------------
function listen() {
  canvas.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "touch") point(cellAt(event.offsetX, event.offsetY));
  });
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event.offsetX, event.offsetY);
    if (cell !== null) show(cell);
  });
  canvas.addEventListener("focus", panel.soon);
  canvas.addEventListener("blur", () => {
    point(null);
    panel.soon();
  });
  onKeys(canvas, pressed);
}

function pressed({ key }) {
  const first = state.grids[0]?.cells[0];
  if (first === undefined) return false;
  const here = placeOf(state.cursor);
  if (key === "Enter" || key === " ") show(here ? state.cursor : first);
  else if (KEYS.includes(key)) move(here ? cellBeside(state.grids, here, key) : first);
  else return false;
  return true;
}

function point(cell) {
  if (state.at === cell) return;
  state.at = cell;
  emit("hover", cell === null || ownerOf(cell) < 0 ? null : ownerOf(cell));
  panel.soon();
}

function show(cell) {
  const { grid, index } = placeOf(cell), [x, y, w, h] = grid.box(index), rect = canvas.getBoundingClientRect();
  state.cursor = cell;
  const open = isBlock(cell) ? blockInfo : stateInfo;
  open(isBlock(cell) ? cell : slotOf(cell), rect.left + x + w / 2, rect.top + y + h / 2, panel.soon);
  panel.soon();
}

function move(cell) {
  if (OPENED.includes(popover.name)) popover.close();
  state.cursor = cell;
  point(cell);
  write(said, isBlock(cell) ? blockWords(cell) : `${stateName(slotOf(cell))}: ${stateWords(slotOf(cell))}`);
}

function blockWords(block) {
  const owner = blocks.owner[block], n = blocks.references[block];
  const holders = `${n > 1 ? ` by ${n}` : ""}${owner >= 0 ? `, #${owner}` : ""}`;
  return `Block ${block}: ${KIND_WORDS[blocks.kind(block)]}${holders}`;
}
