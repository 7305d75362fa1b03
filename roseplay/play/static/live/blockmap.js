/* The KV blocks, in the pool's order or grouped by request, on a canvas; below them a bar for unused ones without room
 * and, for a model with recurrent layers, its state slots and kept states. A cell is filled in its owner's hue;
 * inverted with its number of holders and the owner's hue as a foot when shared; hollow when cached or kept; light when
 * free. If there are too many, a cell joins several, and one can zoom in. Pointing at a cell emits "hover" with its
 * owner; a click, or Enter after the arrow keys, opens its details. */
import { blocks } from "../shared/blocks.js";
import { make, onKeys, write } from "../shared/dom.js";
import { emit } from "../shared/events.js";
import { format } from "../shared/format.js";
import { segmented } from "../shared/legend.js";
import { Panel } from "../shared/panel.js";
import { pointing } from "../shared/pointing.js";
import { popover } from "../shared/popover.js";
import { states } from "../shared/states.js";
import { store } from "../shared/store.js";
import { palette } from "../shared/theme.js";
import { kindOf, ownerOf, Sheet, slotOf, together } from "./blockcells.js";
import { blockLegend, blockSentence, TABLE } from "./blockcounts.js";
import { blockOrder } from "./blockorder.js";
import { BlockZoom } from "./blockzoom.js";
import { cellBeside, KEYS, layOut } from "./cellgrid.js";
import { about, cellOpen } from "./cellinfo.js";

const NOTHING = "One cell per block: the memory of a few tokens.";
const LABEL_PX = 10, LABEL_CHAR_PX = 6, LOW_PX = 8, LABEL_APART = 8, SLOT_LABEL_APART = 4, OUTLINED_PX = 5;
const LEAST_HEIGHT = 24, UNUSED_BASELINE = 12, THUMB_PX = 2, LEAST_THUMB_PX = 6;

/** @type {import("./cellgrid.js").Layout} */
let layout = { grids: [], order: new Int32Array(0), bar: null, level: 0, most: 0, first: 0 };
/* `at` and `cursor` are cells, by the first number they stand for. */
const state = { grouped: false, T: null, at: null, cursor: 0 };
let canvas = null, pen = null, sheet = null, zoom = null, panel = null;
let showCounts = null, showStates = null, summary = "";

export function mount(element) {
  sheet = new Sheet();
  const spec = { every: 2, follows: true, keys: true, table: TABLE, draw, describe: () => `KV blocks. ${summary}` };
  panel = new Panel(element, { name: "blockmap", canvas: "rp-blocks", ...spec });
  ({ canvas, pen } = panel);
  panel.subtitle.append(make("span"), make("span", "rp-roomy"));
  const order = segmented("order of blocks", ["physical", "by request"], (word) => {
    state.grouped = word !== "physical";
    panel.soon();
  });
  zoom = new BlockZoom(canvas, () => layout, () => {
    arrange(canvas.clientWidth, canvas.clientHeight);
    panel.soon();
  });
  panel.show(zoom.buttons, order, panel.table.button);
  [showCounts, showStates] = blockLegend(panel.plot);
  listen();
}

// ---- where cells lie --------------------------------------------------------------------------------------
function arrange(width, height) {
  const all = { order: blockOrder(state.grouped), used: blocks.used };
  layout = layOut(width, height, all, slotGroups(), zoom.at);
  zoom.show();
}

/* For a model with recurrent layers: the slots of running requests, and those of kept states. */
function slotGroups() {
  const numbered = (from, to) => Int32Array.from({ length: to - from }, (_, i) => blocks.total + from + i + 1);
  return [numbered(0, states.slots), numbered(states.slots, states.total)].filter((group) => group.length);
}

/** The cell at a point of the canvas, or null. */
function cellAt(px, py) {
  const grid = layout.grids.find((one) => one.at(px, py) >= 0);
  return grid ? grid.cell(grid.at(px, py)) : null;
}

/** The grid that has a cell for a number, and its index there; null if it is not in view. */
function placeOf(number) {
  const grid = layout.grids.find((one) => one.indexOf(number) >= 0);
  return grid ? { grid, index: grid.indexOf(number) } : null;
}

/* The members of a cell: one number, or several blocks. */
function membersOf(cell) {
  const place = placeOf(cell);
  return place ? place.grid.members(place.index) : Int32Array.of(cell);
}

// ---- drawing ----------------------------------------------------------------------------------------------
function draw(width, height) {
  if (height < LEAST_HEIGHT) return false; // where another view has its place
  const counts = blocks.counts(), idle = !counts.active && !counts.shared;
  state.T = palette();
  arrange(width, height);
  pen.begin(width, height);
  sheet.paint(width, height, layout.grids, idle);
  sheet.copyTo(pen.g);
  outlineOwned();
  labels();
  if (layout.bar) drawUnused(layout.bar);
  if (zoom.at) thumb(width, height);
  ring();
  if (idle && !counts.cached) pen.note(NOTHING, width / 2, noteAt());
  showCounts(counts);
  sub();
  summary = `${blockSentence()} Arrow keys choose a block, Enter opens it${layout.most ? ", + and − zoom" : ""}.`;
}

function noteAt() {
  const { grids: [{ top, bottom }], bar } = layout; // in the larger one
  return bar && bar.height > bottom - top ? bar.top + bar.height / 2 : (top + bottom) / 2;
}

/* The number of the first block in a row; what lies below the blocks says what it is. */
function labels() {
  const [grid, ...below] = layout.grids, { T } = state;
  const label = (words, { left, top, dy }, row, apart) => {
    const x = Math.max(left - apart, words.length * LABEL_CHAR_PX); // long numbers stand nearer
    const y = dy < LOW_PX ? dy / 2 + LABEL_PX / 2 - 1 : Math.min(dy, LABEL_PX) - 1;
    pen.text(words, x, top + row * dy + y, T.ink3, "right");
  };
  const every = Math.max(1, Math.ceil(LABEL_PX / grid.dy)), most = Math.floor(grid.left / LABEL_CHAR_PX);
  for (let row = 0; !state.grouped && grid.count && row < grid.rows; row += every) {
    const number = grid.cell(row * grid.columns), words = String(number);
    label(words.length <= most ? words : `${Math.round(number / 1000)}k`, grid, row, LABEL_APART);
  }
  for (const one of below.filter(({ count }) => count)) {
    label(states.isKept(slotOf(one.cell(0))) ? "kept" : "slots", one, 0, SLOT_LABEL_APART);
  }
}

/* Blocks without a cell. */
function drawUnused({ left, top, width, height, count }) {
  const { g } = pen, { T } = state;
  pen.fill(T.free, left, top, width, height);
  g.font = '400 11px "RP Sans", sans-serif';
  g.textAlign = "left";
  g.fillStyle = T.ink2;
  g.fillText(`${format.count(count)} more, never used`, left + 8, top + UNUSED_BASELINE);
}

/* Mark at the right edge which part of the blocks is in view. */
function thumb(width, height) {
  const { grids: [grid], order, first } = layout, { T } = state, room = height - grid.top;
  const long = Math.max(LEAST_THUMB_PX, (room * grid.numbers.length) / order.length);
  const share = first / Math.max(1, order.length - grid.numbers.length);
  pen.fill(T.line, width - THUMB_PX, grid.top, THUMB_PX, room);
  pen.fill(T.ink3, width - THUMB_PX, grid.top + (room - long) * share, THUMB_PX, long);
}

/* Outline what a request holds that is selected as a whole. */
function outlineOwned() {
  const { selected } = pointing;
  if (!selected || selected.step !== null) return;
  for (const grid of layout.grids.filter(({ dx, per }) => per === 1 && dx >= OUTLINED_PX)) {
    grid.numbers.forEach((cell, i) => {
      if (ownerOf(cell) === selected.rid && kindOf(cell) >= blocks.ACTIVE) outline(grid.box(i));
    });
  }
}

/* Draw a ring around the cell that is pointed at, chosen by the keys, or open. */
function ring() {
  const chosen = document.activeElement === canvas || cellOpen();
  const place = placeOf(state.at ?? (chosen ? state.cursor : 0));
  if (place) outline(place.grid.box(place.index));
}

const outline = ([x, y, w, h]) => pen.frame(x - 0.75, y - 0.75, w + 1.5, h + 1.5, state.T.ink);

function sub() {
  const { info } = store, { count } = format, { total } = blocks, counted = stateCounts();
  const size = info && info.block_size ? ` × ${info.block_size} tokens` : "";
  write(panel.subtitle.firstElementChild, total ? (zoom.at ? inView() : count(total) + size + perCell()) : "");
  write(panel.subtitle.lastElementChild, counted && ` · ${counted}`);
  showStates(counted);
}

const perCell = () => (layout.grids[0].per > 1 ? `, ${layout.grids[0].per} a cell` : "");

function inView() {
  const { grids: [grid], order, first } = layout, { count } = format;
  const from = state.grouped ? first + 1 : grid.cell(0);
  return `${count(from)}–${count(from + grid.numbers.length - 1)} of ${count(order.length)}${perCell()}`;
}

/* For a model with recurrent layers: how many states its requests hold, and how many the prefix cache keeps. */
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
    if (cell !== null && !zoom.dragged) show(cell);
  });
  canvas.addEventListener("focus", panel.soon);
  canvas.addEventListener("blur", () => {
    point(null);
    panel.soon();
  });
  onKeys(canvas, onKey);
}

function onKey({ key }) {
  const [grid] = layout.grids, first = grid?.count ? grid.cell(0) : undefined, here = placeOf(state.cursor);
  const steps = { "+": -1, "=": -1, "-": 1 }[key], pages = { PageUp: -1, PageDown: 1 }[key];
  if (first === undefined) return false;
  if (steps) return zoom.step(steps, here?.grid === grid ? layout.first + here.index * grid.per : undefined);
  if (pages && zoom.at) zoom.pan(pages * Math.max(1, grid.rows - 1));
  else if (key === "Enter" || key === " ") show(here ? state.cursor : first);
  else if (key === "Home" || key === "End") move(cellFrom(here ?? { grid, index: 0 }, key));
  else if (KEYS.includes(key)) move(here ? cellFrom(here, key) : first);
  else return false;
  return true;
}

/* The cell that a key leads to; if that is a block out of view, the window moves to it. */
function cellFrom(here, key) {
  const [grid] = layout.grids, { order, first } = layout, perRow = grid.columns * grid.per;
  const by = { ArrowLeft: -grid.per, ArrowRight: grid.per, ArrowUp: -perRow, ArrowDown: perRow }[key];
  const from = first + here.index * grid.per;
  const to = by ? from + by : key === "Home" ? 0 : Math.floor((order.length - 1) / grid.per) * grid.per;
  const ends = !by && layout.grids.length > 1 && key === "End";
  if (!zoom.at || here.grid !== grid || to < 0 || to >= order.length || ends) {
    return cellBeside(layout.grids, here, key);
  }
  zoom.reveal(to);
  return order[to];
}

function point(cell) {
  if (state.at === cell) return;
  state.at = cell;
  const owner = cell === null ? -1 : holderOf(cell);
  emit("hover", owner < 0 ? null : owner);
  panel.soon();
}

function holderOf(cell) {
  const members = membersOf(cell);
  return members.length > 1 ? together(members).owner : ownerOf(cell);
}

function show(cell) {
  const { grid, index } = placeOf(cell), [x, y, w, h] = grid.box(index), rect = canvas.getBoundingClientRect();
  const px = rect.left + x + w / 2, py = rect.top + y + h / 2, place = layout.first + index * grid.per;
  state.cursor = cell;
  popover.open({ ...about(grid.members(index).slice(), () => zoomTo(place)), x: px, y: py, closed: panel.soon });
  panel.soon();
}

/* Zoom in to cells of the usual size, and choose the block at a place in the order. */
function zoomTo(place) {
  zoom.step(-layout.level, place);
  state.cursor = layout.order[place];
  canvas.focus({ preventScroll: true });
}

function move(cell) {
  if (cellOpen()) popover.close();
  state.cursor = cell;
  point(cell);
  const { title, words } = about(membersOf(cell));
  write(panel.said, `${title}: ${words()}`);
}
