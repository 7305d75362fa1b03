/* The elements of charts, in Plotly's format, as far as marks.js draws them. */
import { fade } from "../theme.js";

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

/** A filled polygon at the top of a plot; its path is in px from there. */
export const polygon = (name, path, x, color) => ({
  ...{ name, type: "path", path, fillcolor: color, line: { width: 0 }, layer: "above" },
  ...{ xsizemode: "pixel", ysizemode: "pixel", xanchor: x, yref: "paper", yanchor: 1 },
});

/** A line from the bottom of a plot to its top. */
export const verticalLine = (name, x, color, dash = "solid") => ({
  name,
  type: "line",
  x0: x,
  x1: x,
  yref: "paper",
  y0: 0,
  y1: 1,
  line: { color, width: 1, dash },
  layer: "above",
});

/** A line across a plot; `y` is a share of its height. */
export const levelLine = (name, y, color, dash) => {
  return { ...verticalLine(name, 0, color, dash), xref: "paper", x1: 1, y0: y, y1: y };
};

/** Traces: dots, which can be pointed at where they are targets, a line, and the area under one, down to `base`. */
export const dotTrace = (x, y, marker, target = false) => {
  return { type: "scatter", mode: "markers", x, y, marker, hoverinfo: target ? "none" : "skip" };
};
export const lineTrace = (x, y, line) => ({ type: "scatter", mode: "lines", x, y, line });
export const areaTrace = (x, y, color, shape = "linear", base = 0) => ({
  ...lineTrace(x, y, { width: 0, shape }),
  fill: "tozeroy",
  fillcolor: color,
  base,
});
