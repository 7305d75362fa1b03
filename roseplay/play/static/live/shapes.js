/* What charts are drawn of, in Plotly's words for it: those that marks.js draws. */
import { fade } from "../shared/theme.js";

/** Words on a plot, with a halo; the caller says where. */
export const annotation = (T, name, text, color) => ({
  name,
  text,
  font: { color, size: 10 },
  bgcolor: fade(T.surface, 0.85),
});

/** A label at the right of the plot: its name over its value. */
export const lineLabel = (T, y, name, value, color, shift = 0) => ({
  ...annotation(T, name, `${name}<br><b style="color:${color}">${value}</b>`, T.ink3),
  xref: "paper",
  x: 1,
  xanchor: "left",
  xshift: 7,
  y,
  yanchor: "middle",
  yshift: shift,
  bgcolor: null,
});

/** A line from the bottom of a plot to its top. */
export const upright = (name, x, color, dash = "solid") => ({
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

/** Traces: a line, and the area under one. */
export const lineTrace = (x, y, line) => ({ type: "scatter", mode: "lines", x, y, line });
export const areaTrace = (x, y, color, shape = "linear") => ({
  ...lineTrace(x, y, { width: 0, shape }),
  fill: "tozeroy",
  fillcolor: color,
});
