/* Where the cells of the block map lie: KV blocks in rows and, of a model with recurrent layers, state slots and kept
 * states below them. All are of the usual size where that fits; else they are lower, then ever smaller squares. */

const LEFT = 38, PHONE_LEFT = 30, PHONE_PX = 480, RIGHT = 4, TOP = 2, APART = 4;
const COLUMNS = 64, PHONE_COLUMNS = 32, PITCH = 8, HIGH = 15, MOST_DIGIT_ROWS = 12;
const SHARE_BELOW = 1 / 3; // of the height, for what lies below blocks that need smaller cells

/** @typedef {CellGrid} Grid */
/** @typedef {{left: number, columns: number, rows: number[], dx: number, dy: number, usual: boolean}} Pitch */

/** Rows of cells, each known by its number. */
class CellGrid {
  /**
   * @param {Int32Array} cells in the order in which they lie
   * @param {number} top
   * @param {Pitch} pitch
   * @param {number} group which of the pitch's groups of rows
   */
  constructor(cells, top, { left, columns, rows, dx, dy }, group = 0) {
    this.left = left;
    this.top = top;
    this.columns = columns;
    this.rows = Math.max(0, rows[group]);
    this.dx = dx;
    this.dy = dy;
    this.gap = Math.min(dx, dy) > 2 ? 1 : 0;
    this.cells = cells.subarray(0, columns * this.rows); // those that have room
  }

  get bottom() {
    return this.top + this.rows * this.dy;
  }

  /**
   * The place of a cell by its index: x, y, width and height.
   * @returns {[number, number, number, number]}
   */
  box(index) {
    const { left, top, columns, dx, dy, gap } = this, high = dy - gap - (dy === HIGH ? 1 : 0);
    return [left + (index % columns) * dx, top + Math.floor(index / columns) * dy, dx - gap, high];
  }

  /** The cell at a point, or null. */
  at(px, py) {
    const column = Math.floor((px - this.left) / this.dx), row = Math.floor((py - this.top) / this.dy);
    if (column < 0 || column >= this.columns || row < 0) return null;
    return this.cells[row * this.columns + column] ?? null;
  }
}

/**
 * Grids of blocks and of what lies below them, each a list of numbers.
 * @param {Int32Array} blocks
 * @param {Int32Array[]} below
 * @returns {CellGrid[]}
 */
export function layOut(width, height, blocks, below) {
  const room = height - TOP, counts = below.map((cells) => cells.length);
  if (!below.length) return [new CellGrid(blocks, TOP, pitchOf(width, room, [blocks.length], PHONE_LEFT))];
  const common = pitchOf(width, room - APART * below.length, [blocks.length, ...counts]);
  if (common.usual) return stacked([blocks, ...below], TOP, common);
  const lower = pitchOf(width, Math.floor(room * SHARE_BELOW) - APART * below.length, counts);
  const high = lower.dy * lower.rows.reduce((sum, rows) => sum + rows, 0) + APART * below.length;
  const upper = new CellGrid(blocks, TOP, pitchOf(width, room - high, [blocks.length]));
  return [upper, ...stacked(below, upper.bottom + APART, lower)];
}

/** @param {Int32Array[]} groups @param {Pitch} pitch */
function stacked(groups, top, pitch) {
  return groups.map((cells, i) => {
    const grid = new CellGrid(cells, top, pitch, i);
    top = grid.bottom + APART;
    return grid;
  });
}

/**
 * Columns and pitch for groups of so many cells.
 * @param {number[]} counts
 * @returns {Pitch}
 */
function pitchOf(width, room, counts, phoneLeft = LEFT) {
  const narrow = width < PHONE_PX, left = narrow ? phoneLeft : LEFT, columns = narrow ? PHONE_COLUMNS : COLUMNS;
  const rowsIn = (columns) => counts.map((count) => Math.max(1, Math.ceil(count / columns)));
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const dx = narrow ? Math.floor((width - left - RIGHT) / columns) : PITCH, rows = rowsIn(columns), all = sum(rows);
  const high = Math.min(HIGH, Math.floor(room / all)), least = narrow ? Math.min(PITCH, dx) : PITCH;
  if (high >= least) {
    return { left, columns, rows, dx, dy: !narrow && all > MOST_DIGIT_ROWS ? PITCH : high, usual: true };
  }
  const wide = columns * dx;
  let d = least - 1;
  while (d > 2 && sum(rowsIn(Math.floor(wide / d))) > Math.floor(room / d)) d--;
  const many = Math.floor(wide / d), needed = rowsIn(many);
  let free = Math.floor(room / d);
  const given = needed.map((rows, i) => {
    const taken = Math.min(rows, free - (needed.length - 1 - i)); // each group has a row at least
    free -= taken;
    return taken;
  });
  return { left, columns: many, rows: given, dx: d, dy: d, usual: false };
}

/** Keys that lead from cell to cell. */
export const KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];

/**
 * The cell that a key leads to from another: along the rows, in its column, from one grid into the next, or to an end.
 * @param {CellGrid[]} grids
 * @param {{grid: CellGrid, index: number}} from
 */
export function cellBeside(grids, { grid, index }, key) {
  const lastOf = ({ cells }) => cells[cells.length - 1], { columns, cells } = grid;
  if (key === "Home") return grids[0].cells[0];
  if (key === "End") return lastOf(grids[grids.length - 1]);
  const down = key === "ArrowUp" || key === "ArrowDown", onward = key === "ArrowRight" || key === "ArrowDown";
  const next = index + (onward ? 1 : -1) * (down ? columns : 1);
  if (next >= 0 && next < cells.length) return cells[next];
  const other = grids[grids.indexOf(grid) + (onward ? 1 : -1)];
  if (!other) return onward ? lastOf(grid) : cells[0];
  if (!down) return onward ? other.cells[0] : lastOf(other);
  const column = Math.min(index % columns, other.columns - 1), row = onward ? 0 : other.rows - 1;
  return other.cells[Math.min(other.cells.length - 1, row * other.columns + column)];
}
