/* The looks of the block map's cells. They are painted on a persistent sheet: a number encodes how each cell looks, and
 * only cells whose number has changed are painted again. */
import { blocks } from "../shared/blocks.js";
import { make } from "../shared/dom.js";
import { createPen } from "../shared/pen.js";
import { pointing, standsBack } from "../shared/pointing.js";
import { states } from "../shared/states.js";
import { laneOf } from "../shared/store.js";
import { hueOf, mix, palette } from "../shared/theme.js";

const FOOT = 2, DIGIT_PITCH = 9, SOLID_PX = 5; // lower cells have no digits, narrower ones cannot be drawn hollow
// 3x5 pixels each, with an octal digit for each row
const DIGITS = "75557 26227 71747 71717 55711 74717 74757 71111 75757 75717 02720".split(" ");
const PLUS = DIGITS.length - 1;
// Opacities; frames have only the owner of a shared block, so shared blocks are dimmed less.
const FULL = 0, OTHERS = 1, BACK = 2, PERHAPS = 3, OPACITY = [1, 0.74, 0.25, 0.6];
const SHARES = 15, PALEST = 0.45; // of a cell that stands for several blocks

// ---- what a cell is ---------------------------------------------------------------------------------------
/* Cells are identified by number: blocks by their own, slots of states by those after the last block. */
export const slotOf = (cell) => cell - blocks.total;

export const isBlock = (cell) => cell <= blocks.total;

export function kindOf(cell) {
  if (isBlock(cell)) return blocks.kind(cell);
  const slot = slotOf(cell);
  return states.request[slot] < 0 ? blocks.FREE : states.isKept(slot) ? blocks.CACHED : blocks.ACTIVE;
}

/** The request whose hue a cell has, -1: none. */
export function ownerOf(cell) {
  if (isBlock(cell)) return blocks.owner[cell];
  return states.isKept(slotOf(cell)) ? -1 : states.request[slotOf(cell)];
}

/** Sums up the blocks in part of a list: how many are of each kind, and the request whose hue their cell has. This is
 * the selected request if it holds any of them, otherwise one that holds more than half of the held ones, otherwise
 * any one that holds some. */
export function together(list, from = 0, to = list.length) {
  const { references, owner, findable } = blocks, picked = pointing.selected?.rid ?? -1;
  let held = 0, shared = 0, cached = 0, of = -1, votes = 0, has = false;
  for (let i = from; i < to; i++) {
    const block = list[i], n = references[block];
    if (n === 0) {
      cached += Number(findable[block] > 0);
      continue;
    }
    held++;
    if (n > 1) shared++;
    if (owner[block] === picked) has = true;
    if (votes === 0) of = owner[block];
    votes += owner[block] === of ? 1 : -1;
  }
  return { held, shared, cached, owner: has ? picked : of };
}

// ---- how it looks -----------------------------------------------------------------------------------------
/* A look encodes kind, hue, opacity, digit, the two shares of a joined cell, and whether it is pinned in one number,
 * which is never 0. */
const PIN = 1 << 22;
const lookOf = (kind, hue, opacity, digit, held = 0, cached = 0) =>
  (1 << 21) | (cached << 17) | (held << 13) | (digit << 9) | (opacity << 7) | (hue << 3) | (kind << 1);

function lookOfCell(cell, idle) {
  const kind = kindOf(cell), owner = ownerOf(cell), digit = kind === blocks.SHARED ? blocks.references[cell] : 0;
  const faint = idle && kind === blocks.CACHED, pin = isBlock(cell) && blocks.isPinned(cell) ? PIN : 0;
  return lookOf(kind, hueOfHeld(kind, owner), opacityOf(kind, owner), Math.min(digit, PLUS)) | Number(faint) | pin;
}

function lookOfJoined(list, from, to) {
  const { held, shared, cached, owner } = together(list, from, to),
    share = (n) => Math.ceil((n / (to - from)) * SHARES);
  const kind = shared ? blocks.SHARED : held ? blocks.ACTIVE : cached ? blocks.CACHED : blocks.FREE;
  return lookOf(kind, hueOfHeld(kind, owner), opacityOf(kind, owner), 0, share(held), share(cached));
}

const hueOfHeld = (kind, owner) => (kind >= blocks.ACTIVE && owner >= 0 ? hueOf(owner) : 0);

function opacityOf(kind, owner) {
  if (standsBack(owner)) return kind === blocks.SHARED ? PERHAPS : BACK;
  const quiet = kind === blocks.ACTIVE && laneOf(owner) === null && owner !== pointing.rid && !pointing.selected;
  return quiet ? OTHERS : FULL;
}

// ---- painting ---------------------------------------------------------------------------------------------
/** A canvas of the map's size with its cells. */
export class Sheet {
  constructor() {
    this.canvas = make("canvas");
    this.pen = createPen(this.canvas);
    this.g = this.pen.g;
    this.place = ""; // of the cells
    this.T = null;
    /** @type {Int32Array[]} of each grid */
    this.looks = [];
    /** @type {Map<number, string>} colours of joined cells, by their looks */
    this.mixed = new Map();
  }

  /** Paint what has changed. Returns how many cells that were.
   * @param {import("./cellgrid.js").Grid[]} grids
   * @param {boolean} idle no request holds a block */
  paint(width, height, grids, idle) {
    const sizes = grids.map(({ left, top, columns, rows, dx, dy, per }) => [left, top, columns, rows, dx, dy, per]);
    const scale = devicePixelRatio || 1, place = `${width} ${height} ${scale} ${sizes.join(" ")}`;
    if (place !== this.place || this.T !== palette()) this.begin(width, height, grids);
    Object.assign(this, { place, T: palette() });
    return grids.reduce((painted, grid, i) => painted + this.paintGrid(grid, this.looks[i], idle), 0);
  }

  /** Put it on another canvas of its size, pixel by pixel. @param {CanvasRenderingContext2D} g */
  copyTo(g) {
    g.save();
    g.resetTransform();
    g.drawImage(this.canvas, 0, 0);
    g.restore();
  }

  begin(width, height, grids) {
    this.pen.begin(width, height);
    this.mixed.clear();
    this.looks = grids.map(({ columns, rows }) => new Int32Array(columns * rows));
  }

  paintGrid(grid, looks, idle) {
    const { numbers, count, per } = grid;
    let painted = 0;
    for (let i = 0; i < looks.length; i++) {
      const end = Math.min((i + 1) * per, numbers.length);
      const of = () => (per > 1 ? lookOfJoined(numbers, i * per, end) : lookOfCell(numbers[i], idle));
      const look = i < count ? of() : 0;
      if (look === looks[i]) continue;
      looks[i] = look;
      painted++;
      this.paintCell(look, grid.box(i), grid);
    }
    return painted;
  }

  paintCell(look, [x, y, w, h], grid) {
    const { g, T } = this, kind = (look >> 1) & 3, hue = T.hues[(look >> 3) & 15], opacity = OPACITY[(look >> 7) & 3];
    if (!look || opacity < 1) g.clearRect(x, y, w, h);
    if (!look) return;
    g.globalAlpha = opacity;
    if (grid.per > 1) this.pen.fill(this.colorOfJoined(look, kind, hue), x, y, w, h);
    else if (kind === blocks.FREE) this.pen.fill(T.free, x, y, w, h);
    else if (kind === blocks.CACHED && w <= SOLID_PX) this.pen.fill(T.cached, x, y, w, h);
    else if (kind === blocks.CACHED) this.hollow(look & 1 ? T.line : T.cachedline, x, y, w, h);
    else if (kind === blocks.ACTIVE) this.pen.fill(hue, x, y, w, h);
    else this.shared(hue, grid.dy >= DIGIT_PITCH && w >= 5 ? (look >> 9) & 15 : 0, x, y, w, h);
    if (look & PIN) this.pin(x, y, w);
  }

  /* The colour of the most important kind in it; the fewer of its blocks are held, the paler. */
  colorOfJoined(look, kind, hue) {
    const { T, mixed } = this, held = ((look >> 13) & 15) / SHARES, cached = ((look >> 17) & 15) / SHARES;
    if (mixed.has(look)) return mixed.get(look);
    const below = mix(T.free, T.cached, cached), above = kind === blocks.SHARED ? T.shared : hue;
    mixed.set(look, kind < blocks.ACTIVE ? below : mix(below, above, PALEST + (1 - PALEST) * held));
    return mixed.get(look);
  }

  /* Faint while no request holds any block: what remains in the cache then is not important. */
  hollow(color, x, y, w, h) {
    this.pen.fill(color, x, y, w, h);
    this.pen.fill(this.T.surface, x + 1, y + 1, w - 2, h - 2);
  }

  /* A pinned block has a dark upper edge, whoever holds it. */
  pin(x, y, w) {
    this.pen.fill(this.T.ink, x, y, w, FOOT);
  }

  shared(hue, digit, x, y, w, h) {
    this.pen.fill(this.T.shared, x, y, w, h);
    if (h > FOOT + 1) this.pen.fill(hue, x, y + h - FOOT, w, FOOT);
    if (digit) this.digit(DIGITS[digit], x + Math.floor((w - 3) / 2), y + Math.floor((h - FOOT - 5) / 2));
  }

  digit(rows, x, y) {
    for (let row = 0; row < 5; row++) {
      for (let column = 0; column < 3; column++) {
        if (Number(rows[row]) & (4 >> column)) this.pen.fill(this.T.surface, x + column, y + row, 1, 1);
      }
    }
  }
}
