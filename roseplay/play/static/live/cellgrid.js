/* The layout of the block map's cells: KV blocks in rows and, for a model with recurrent layers, state slots and kept
 * states below them. All have the usual size if that fits. Otherwise cells have the largest size at which those blocks
 * fit that were ever used, and the others without room are one bar; if cells would be smaller than LEAST px, one stands
 * for several blocks. Zooming in goes back through these sizes, with a window of the used blocks in view. */

const LEFT = 38, PHONE_LEFT = 30, PHONE_PX = 480, RIGHT = 4, TOP = 2, APART = 4, LONG_NUMBERS = 10000;
const BAR = 15; // the least height of the bar
const COLUMNS = 64, PHONE_COLUMNS = 32, PITCH = 8, HIGH = 15, MOST_DIGIT_ROWS = 12;
const SHARE_BELOW = 1 / 3; // of the height, for what lies below blocks that need smaller cells
const SQUARES = [8, 6, 4, 3], LEAST = 3; // px, each has room for about twice as many as the one before

/** @typedef {CellGrid} Grid */
/** @typedef {{left: number, columns: number, rows: number[], dx: number, dy: number, per?: number}} Pitch */
/** @typedef {ReturnType<typeof widthOf>} Wide */
/** @typedef {{level: number, first: number}} Zoom the size of cells, 0 the largest, and the first block's place */
/** @typedef {{left: number, top: number, width: number, height: number, count: number}} Bar */

/** @typedef {object} Layout
 * @property {Grid[]} grids that of the blocks first
 * @property {Int32Array} order the blocks that have a cell, in view or not
 * @property {Bar | null} bar of the blocks without a cell, none of which was ever used
 * @property {number} level the size of the blocks' cells
 * @property {number} most the size at which all of them are in view; 0: nothing can be zoomed
 * @property {number} first place in `order` of the first block in view */

/** Rows of cells. Each stands for `per` neighbours in a list of numbers, of one grid or of a window of them. */
class CellGrid {
  /** @param {Int32Array} numbers in the order in which they lie
   * @param {number} top
   * @param {Pitch} pitch
   * @param {number} group which of the pitch's groups of rows */
  constructor(numbers, top, { left, columns, rows, dx, dy, per = 1 }, group = 0) {
    this.left = left;
    this.top = top;
    this.columns = columns;
    this.rows = Math.max(0, rows[group]);
    this.dx = dx;
    this.dy = dy;
    this.per = per;
    this.gap = Math.min(dx, dy) > 2 ? 1 : 0;
    this.numbers = numbers.subarray(0, columns * this.rows * per); // those that have room
    this.count = Math.ceil(this.numbers.length / per);
  }

  get bottom() {
    return this.top + this.rows * this.dy;
  }

  get width() {
    return this.columns * this.dx - this.gap;
  }

  /** What the cell at an index stands for. */
  members(index) {
    return this.numbers.subarray(index * this.per, (index + 1) * this.per);
  }

  /** The first number of the cell at an index, by which it is known. */
  cell(index) {
    return this.numbers[index * this.per];
  }

  /** The index of the cell that stands for a number, or -1. */
  indexOf(number) {
    return Math.floor(this.numbers.indexOf(number) / this.per);
  }

  /** The place of a cell by its index: x, y, width and height. @returns {[number, number, number, number]} */
  box(index) {
    const { left, top, columns, dx, dy, gap } = this, high = dy - gap - (dy === HIGH ? 1 : 0);
    return [left + (index % columns) * dx, top + Math.floor(index / columns) * dy, dx - gap, high];
  }

  /** The index of the cell at a point, or -1. */
  at(px, py) {
    const column = Math.floor((px - this.left) / this.dx), row = Math.floor((py - this.top) / this.dy);
    if (column < 0 || column >= this.columns || row < 0) return -1;
    const index = row * this.columns + column;
    return index < this.count ? index : -1;
  }
}

/** Grids of blocks and of what lies below them.
 * @param {number} width
 * @param {number} height
 * @param {{order: Int32Array, used: number}} blocks all blocks; the first `used` of them were ever used
 * @param {Int32Array[]} below numbers of what lies below the blocks
 * @param {Zoom | null} zoom
 * @returns {Layout} */
export function layOut(width, height, { order, used }, below, zoom = null) {
  const room = height - TOP, apart = APART * below.length, counts = below.map((numbers) => numbers.length);
  const wide = widthOf(width, below.length || order.length >= LONG_NUMBERS ? LEFT : PHONE_LEFT);
  const usual = usualPitch(wide, room - apart, [order.length, ...counts]);
  if (usual) return { grids: stack([order, ...below], TOP, usual), order, bar: null, level: 0, most: 0, first: 0 };
  const lower = below.length ? pitchOf(wide, Math.floor(room * SHARE_BELOW) - apart, counts) : null;
  const layout = layOutUsed(wide, lower ? room - lower.dy * sum(lower.rows) - apart : room, order, used, zoom);
  const { grids: [grid], bar } = layout;
  if (lower) layout.grids.push(...stack(below, (bar ? bar.top + bar.height : grid.bottom) + APART, lower));
  return layout;
}

/* The used blocks and as many others as have room, with the bar of the rest; or a window of the used ones. */
function layOutUsed(wide, room, order, used, zoom) {
  const above = order.length > used ? room - BAR - APART : room;
  let most = 0;
  while (capacity(pitchAt(wide, above, most)) < used) most++;
  const zoomed = zoom !== null && zoom.level < most, level = zoomed ? zoom.level : most;
  const pitch = pitchAt(wide, zoomed ? room : above, level), perRow = pitch.columns * pitch.per;
  const shown = order.subarray(0, zoomed ? used : capacity(pitch)), rest = order.length - shown.length;
  const needed = Math.ceil(shown.length / perRow), rows = Math.min(needed, pitch.most);
  const first = zoomed ? Math.max(0, Math.min(Math.floor(zoom.first / perRow), needed - rows)) * perRow : 0;
  const fill = Math.floor((rest ? above : room) / rows); // where there would be room for more rows
  const dy = level && !zoomed ? Math.min(fill, 2 * pitch.dx) : pitch.dy;
  const grid = new CellGrid(shown.subarray(first), TOP, { ...pitch, dy, rows: [rows] }), top = grid.bottom + APART;
  const bar = zoomed || !rest
    ? null
    : { left: grid.left, top, width: grid.width, height: TOP + room - top, count: rest };
  return { grids: [grid], order: shown, bar, level, most, first };
}

const capacity = ({ columns, most, per }) => columns * most * per;

/* Columns, the most rows, and blocks per cell: at level 0 usual cells, then squares, then ever more blocks per cell. */
function pitchAt({ left, columns, dx }, room, level) {
  const joined = Math.max(0, level - SQUARES.length), d = joined ? LEAST : SQUARES[level - 1];
  const pitch = level ? { columns: Math.floor((columns * dx) / d), dx: d, dy: d } : { columns, dx, dy: HIGH };
  return { left, ...pitch, most: Math.max(1, Math.floor(room / pitch.dy)), per: 2 ** joined };
}

/** @param {Int32Array[]} groups @param {Pitch} pitch */
function stack(groups, top, pitch) {
  return groups.map((numbers, i) => {
    const grid = new CellGrid(numbers, top, pitch, i);
    top = grid.bottom + APART;
    return grid;
  });
}

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

const rowsIn = (columns, counts) => counts.map((count) => Math.max(1, Math.ceil(count / columns)));

/* The columns that fit the width with cells of the usual size. */
function widthOf(width, phoneLeft) {
  const narrow = width < PHONE_PX, left = narrow ? phoneLeft : LEFT, columns = narrow ? PHONE_COLUMNS : COLUMNS;
  const room = Math.floor((width - left - RIGHT) / columns), least = Math.min(PITCH, room);
  return { narrow, left, columns, dx: narrow ? room : least, least };
}

/** Columns and pitch for groups of this many cells of the usual size; null if they do not fit.
 * @param {Wide} wide
 * @param {number} room
 * @param {number[]} counts
 * @returns {Pitch | null} */
function usualPitch({ narrow, left, columns, dx, least }, room, counts) {
  const rows = rowsIn(columns, counts), high = Math.min(HIGH, Math.floor(room / sum(rows)));
  if (high < least) return null;
  return { left, columns, rows, dx, dy: !narrow && sum(rows) > MOST_DIGIT_ROWS ? PITCH : high };
}

/** The same, with ever smaller squares if they do not fit; even the smallest may fit only in part.
 * @param {Wide} wide
 * @returns {Pitch} */
function pitchOf(wide, room, counts) {
  const usual = usualPitch(wide, room, counts);
  if (usual) return usual;
  const { left, columns, dx, least } = wide;
  let d = least - 1;
  while (d > 2 && sum(rowsIn(Math.floor((columns * dx) / d), counts)) > Math.floor(room / d)) d--;
  const many = Math.floor((columns * dx) / d), needed = rowsIn(many, counts);
  let free = Math.floor(room / d);
  const rows = needed.map((rows, i) => {
    const taken = Math.min(rows, free - (needed.length - 1 - i)); // each group has a row at least
    free -= taken;
    return taken;
  });
  return { left, columns: many, rows, dx: d, dy: d };
}

/** Keys that lead from cell to cell. */
export const KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];

/** The cell that a key leads to from another: along the rows, in its column, from one grid into the next, or to an end.
 * @param {CellGrid[]} grids
 * @param {{grid: CellGrid, index: number}} from */
export function cellBeside(grids, { grid, index }, key) {
  const lastOf = (grid) => grid.cell(grid.count - 1), { columns } = grid;
  if (key === "Home") return grids[0].cell(0);
  if (key === "End") return lastOf(grids[grids.length - 1]);
  const down = key === "ArrowUp" || key === "ArrowDown", onward = key === "ArrowRight" || key === "ArrowDown";
  const next = index + (onward ? 1 : -1) * (down ? columns : 1);
  if (next >= 0 && next < grid.count) return grid.cell(next);
  const other = grids[grids.indexOf(grid) + (onward ? 1 : -1)];
  if (!other) return onward ? lastOf(grid) : grid.cell(0);
  if (!down) return onward ? other.cell(0) : lastOf(other);
  const column = Math.min(index % columns, other.columns - 1), row = onward ? 0 : other.rows - 1;
  return other.cell(Math.min(other.count - 1, row * other.columns + column));
}
