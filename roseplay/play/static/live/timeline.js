/* The geometry of the step timeline as last drawn, for its drawing, its cells and the pointer. */
import { Rows } from "./rows.js";

export const LEFT = 44;
export const RIGHT = 12;

/**
 * @typedef {object} Timeline
 * @property {boolean} byItl whether colours show latency instead of requests
 * @property {import("../shared/theme.js").Palette} T
 * @property {import("../shared/types.js").TimeWindow | null} window null until it has been drawn
 * @property {number} width
 * @property {number} height
 * @property {number} plot the width of its plot
 * @property {number} shown how many rows
 * @property {number} rowHeight of those behind the lanes
 * @property {(ms: number) => number} x of a view time
 * @property {(row: number) => number} y the middle of a row
 * @property {(row: number) => number} high of a row
 */

export const timeline = /** @type {Timeline} */ ({ byItl: false, window: null });

export const rows = new Rows();
