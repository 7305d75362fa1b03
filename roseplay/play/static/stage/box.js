/* The box of a step, packed with its tokens: slots for the running requests on top, each filled by the next token of
 * its answer, and cells for the tokens of prompts, from below. A cell stands for one token, or for 4, 16 or more where
 * there are too many. */

/** @import { Part } from "./scene.js" */
/** A grid of squares; `per`: what each stands for.
 * @typedef {{x0: number, x1: number, y0: number, y1: number, pitch: number, columns: number, per: number}} Grid */

const PER = [1, 4, 16, 64, 256, 1024], CELLS_PX = [12, 10, 9, 8, 7, 6], SLOTS_PX = [15, 12, 9, 7, 5, 4], SLOT_ROWS = 3;
export const GAP_PX = 8; // between slots and cells

/** Finest squares in an area that hold so much; rows of squares are at most `rows`. */
function fitted({ x0, x1, y0, y1 }, most, sizes, rows = Infinity) {
  const tries = PER.flatMap((per) => sizes.map((pitch) => ({ per, pitch, columns: Math.floor((x1 - x0) / pitch) })));
  const fits = ({ per, pitch, columns }) => columns * Math.min(rows, Math.floor((y1 - y0) / pitch)) * per >= most;
  return { x0, x1, y0, y1, ...(tries.find(fits) ?? tries[tries.length - 1]) };
}

/** Where slots and cells lie in an area.
 * @param {{x0: number, x1: number, y0: number, y1: number}} area
 * @param {number} batch how many requests may run at once
 * @param {number} tokens of prompts that there must be room for
 * @returns {{slots: Grid, cells: Grid}} */
export function layOutBox(area, batch, tokens) {
  const slots = fitted({ ...area, y1: area.y0 + SLOT_ROWS * SLOTS_PX[0] }, batch, SLOTS_PX, SLOT_ROWS);
  slots.y1 = slots.y0 + Math.ceil(Math.ceil(batch / slots.per) / slots.columns) * slots.pitch;
  return { slots, cells: fitted({ ...area, y0: slots.y1 + GAP_PX }, tokens, CELLS_PX) };
}

/** The corner of a slot, counted from the upper left. @param {Grid} grid @returns {[x: number, y: number]} */
export const slotAt = ({ x0, y0, pitch, columns: n }, i) => [x0 + (i % n) * pitch, y0 + Math.floor(i / n) * pitch];

/** The corner of a cell, counted from the lower left. @param {Grid} grid @returns {[x: number, y: number]} */
export const cellAt = (
  { x0, y1, pitch, columns: n },
  i,
) => [x0 + (i % n) * pitch, y1 - (Math.floor(i / n) + 1) * pitch];

/** Which slot is at a point; beyond the grid, the nearest. @param {Grid} grid */
export function slotUnder({ x0, y0, y1, pitch, columns }, x, y) {
  const column = Math.max(0, Math.min(columns - 1, Math.floor((x - x0) / pitch)));
  return Math.floor((Math.max(y0, Math.min(y1 - 1, y)) - y0) / pitch) * columns + column;
}

/** Which cell is at a point; beyond the grid, the nearest. @param {Grid} grid */
export const cellUnder = (grid, x, y) => slotUnder(grid, x, grid.y0 + grid.y1 - 1 - y);

/** The part of a step that each cell stands for: the one that the cell's first token belongs to.
 * @param {Part[]} parts
 * @param {number} per
 * @returns {Part[]} */
export function cellsOf(parts, per) {
  const cells = [];
  let tokens = 0;
  for (const part of parts) {
    tokens += part.prompt;
    while (cells.length * per < tokens) cells.push(part);
  }
  return cells;
}

/** Those whose answers go on come first, then those whose prompts are computed. @param {Part[]} parts */
export const slotsOf = (parts) => [...parts].sort((a, b) => Number(b.decode > 0) - Number(a.decode > 0));

/** The line under which so many tokens lie: it steps where the row is not full. @param {Grid} grid @param {number} n */
export function limitPath({ x0, x1, y1, pitch, columns, per }, n) {
  const cells = n / per, rows = Math.floor(cells / columns), x = x0 + (cells - rows * columns) * pitch;
  const low = y1 - rows * pitch;
  return x - x0 < 1 ? [[x0, low], [x1, low]] : [[x0, low - pitch], [x, low - pitch], [x, low], [x1, low]];
}
