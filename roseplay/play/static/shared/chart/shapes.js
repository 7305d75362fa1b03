/* The elements of charts that marks.js draws. Places on a "paper" axis are shares of the plot, from its left and its
 * bottom; all others are values. */
import { fade } from "../theme.js";

/** @type {number[]} */
const NO_DASH = [];

/** A line of words on a plot, with a halo; the caller adds its position. */
export const annotation = (T, name, words, color, bold = false) => ({
  name,
  lines: [{ words, color, bold }],
  bgcolor: fade(T.surface, 0.85),
});

/** The position of words at the left or right of a place, `px` away from it. */
export const beside = (x, left, px) => ({ x, xanchor: left ? "right" : "left", xshift: left ? -px : px });

/** The position of words above the plot. */
export const ABOVE = { yref: "paper", y: 1, yanchor: "middle", yshift: 10 };

/** A label at the right of the plot: its name over its value. */
export const lineLabel = (T, y, name, value, color, yshift = 0) => ({
  name,
  lines: [{ words: name, color: T.ink3 }, { words: value, color, bold: true }],
  ...beside(1, false, 7),
  ...{ xref: "paper", y, yanchor: "middle", yshift },
});

/** A filled polygon at the top of a plot; its corners are in px from there, to the right and down. */
export const polygon = (name, corners, x, color) => ({ name, corners, x0: x, yref: "paper", y0: 1, color });

/** A line from the bottom of a plot to its top, `shift` px beside its place; `below` what the traces draw. */
export const verticalLine = (name, x, color, { dash = NO_DASH, shift = 0, below = false } = {}) => {
  return { name, x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color, width: 1, dash }, shift, below };
};

/** A line across a plot; `y` is a share of its height. */
export const levelLine = (name, y, color, dash) => {
  return { ...verticalLine(name, 0, color, { dash }), xref: "paper", x1: 1, y0: y, y1: y };
};

/** Traces: dots, which can be pointed at where they are targets, a line, and the area under one, down to `base`; with
 * `steps`, each value lasts to the next. */
export const dotTrace = (x, y, marker, target = false) => ({ x, y, marker, target });
export const lineTrace = (x, y, line) => ({ x, y, line });
export const areaTrace = (x, y, color, steps = false, base = 0) => ({ x, y, area: { color, steps, base } });
