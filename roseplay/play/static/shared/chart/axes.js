/* Axes on a canvas: the lines of the grid, and words at the left of an area and under it. */
import { CHAR_PX, sharp } from "../pen.js";

/** @import { Pen } from "../pen.js" */
/** @import { Palette } from "../theme.js" */
/** @import { Tick } from "./scale.js" */

/** @typedef {{x0: number, x1: number, y0: number, y1: number, width: number, height: number}} Area in CSS pixels */

const BESIDE_PX = 6, UNDER_PX = 13;
const OVER_PX = 10; // how far words under an area may extend beyond its right
const APART_PX = 4;

/** The grid with its words, and the base line.
 * @param {Pen} pen
 * @param {Area} area
 * @param {{x: Tick[], y: Tick[]}} ticks
 * @param {Palette} T */
export function drawAxes(pen, area, { x, y }, T) {
  drawLevels(pen, area, y, T);
  drawUprights(pen, area, x, T);
  drawWords(pen, area, x, T);
  drawBase(pen, area, T);
}

/** Level lines, with their words at the left of the area. */
export function drawLevels(pen, { x0, x1 }, ticks, T) {
  for (const { at, words } of ticks) {
    pen.line(x0, sharp(at), x1, sharp(at), T.grid);
    pen.text(words, x0 - BESIDE_PX, sharp(at) + 3.5, T.ink3, "right");
  }
}

export function drawUprights(pen, { y0, y1 }, ticks, T) {
  for (const { at } of ticks) pen.line(sharp(at), y0, sharp(at), y1, T.grid);
}

/** Draw words under the area, centred at their places if possible; of two that would overlap, only the right one. */
export function drawWords(pen, { x1, y1 }, ticks, T) {
  const most = x1 + OVER_PX;
  let free = most;
  for (const { at, words } of ticks.slice().reverse()) {
    const wide = words.length * CHAR_PX, moved = at + wide / 2 > most, end = moved ? most : at + wide / 2;
    if (end > free) continue;
    pen.text(words, moved ? most : at, y1 + UNDER_PX, T.ink3, moved ? "right" : "center");
    free = end - wide - APART_PX;
  }
}

export const drawBase = (pen, { x0, x1, y1 }, T) => pen.line(x0, sharp(y1), x1, sharp(y1), T.line2);
