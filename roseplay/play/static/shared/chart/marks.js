/* The contents of a chart, on a canvas over Plotly's axes: curves, areas, dots, lines and words. They move with time,
 * several times a second; drawing them takes Plotly some thirty milliseconds, a canvas one or two. */
import { make } from "../dom.js";
import { createPen } from "../pen.js";
import { linear } from "./scale.js";

const NEAR_PX = 12, FONT_PX = 10, LINE_PX = 13, SQUARE_PX = 2.2; // dots smaller than this are drawn as squares
const MONO = '"RP Mono", ui-monospace, monospace';
const SHARE = { left: 0, center: 0.5, right: 1, top: 0, middle: 0.5, bottom: 1 };

export class Marks {
  /** @param {HTMLElement} plot @param {{l: number, r: number, t: number, b: number}} margin */
  constructor(plot, margin) {
    const canvas = make("canvas", { className: "rp-marks", "aria-hidden": true });
    plot.append(canvas);
    this.pen = createPen(canvas);
    this.margin = margin;
    this.box = null; // of the plot, in px: {l, t, w, h}
    this.X = null; // px of a value
    this.Y = null;
    this.up = null;
    this.targets = []; // {x, y, curveNumber, pointNumber} of the dots that can be pointed at
  }

  /** @param {{data: any[], layout: any}} drawing */
  draw({ data, layout }, width, height) {
    const { pen, margin } = this, { g } = pen;
    pen.begin(width, height);
    const box = { l: margin.l, t: margin.t, w: width - margin.l - margin.r, h: height - margin.t - margin.b };
    const [x0, x1] = layout.xaxis.range, [y0, y1] = layout.yaxis.range, log = layout.yaxis.type === "log";
    this.box = box;
    this.X = linear(x0, x1, box.l, box.l + box.w);
    this.up = linear(y0, y1, box.t + box.h, box.t); // of a logarithmic axis by exponents, as Plotly has it
    this.Y = log ? (v) => this.up(Math.log10(v)) : this.up;
    this.targets = [];
    g.save();
    g.beginPath();
    g.rect(box.l, 0, box.w + 1, box.t + box.h + 1);
    g.clip();
    for (const shape of layout.shapes) if (shape.below) this.drawShape(shape);
    data.forEach((trace, i) => (trace.marker ? this.drawDots(trace, i) : this.drawTrace(trace)));
    for (const shape of layout.shapes) if (!shape.below) this.drawShape(shape);
    g.restore();
    for (const words of layout.annotations) this.drawWords(words);
  }

  stroke({ color, width, dash }) {
    const { g } = this.pen;
    if (!width) return;
    g.strokeStyle = color;
    g.lineWidth = width;
    g.setLineDash(dash || []);
    g.stroke();
    g.setLineDash([]);
  }

  // ---- traces ---------------------------------------------------------------------------------------------
  drawTrace(trace) {
    const { g } = this.pen, { area } = trace;
    for (const run of this.pieces(trace)) {
      g.beginPath();
      if (area) g.lineTo(run[0][0], this.Y(area.base));
      run.forEach(([x, y], i) => {
        if (i && area?.steps) g.lineTo(x, run[i - 1][1]);
        g.lineTo(x, y);
      });
      if (area) {
        g.lineTo(run[run.length - 1][0], this.Y(area.base));
        g.fillStyle = area.color;
        g.fill();
      } else this.stroke(trace.line);
    }
  }

  /* A curve's points in px, in as many pieces as there are gaps in it, which are null. */
  pieces({ x, y }) {
    const { X, Y } = this, runs = [[]];
    x.forEach((v, i) => {
      if (y[i] !== null) runs[runs.length - 1].push([X(v), Y(y[i])]);
      else if (runs[runs.length - 1].length) runs.push([]);
    });
    return runs.filter((run) => run.length);
  }

  drawDots({ x, y, marker, target }, curveNumber) {
    const { g } = this.pen, { box, X, Y, targets } = this;
    const paint = (i) => (Array.isArray(marker.color) ? marker.color[i] : marker.color);
    for (let from = 0, to; from < x.length; from = to) { // neighbours of one colour are one path
      g.beginPath();
      for (to = from; to < x.length && paint(to) === paint(from); to++) {
        const px = X(x[to]), py = Y(y[to]);
        if (px < box.l - 1 || px > box.l + box.w + 1 || py < box.t - 5 || py > box.t + box.h + 1) continue;
        this.dot(px, py, marker);
        if (target) targets.push({ x: px, y: py, curveNumber, pointNumber: to });
      }
      g.fillStyle = paint(from);
      g.fill();
      if (marker.line) this.stroke(marker.line);
    }
  }

  dot(x, y, { size, symbol }) {
    const { g } = this.pen, r = size / 2;
    if (symbol === "diamond") {
      g.moveTo(x, y - r);
      for (const [dx, dy] of [[r, 0], [0, r], [-r, 0]]) g.lineTo(x + dx, y + dy);
      g.closePath();
    } else if (size < SQUARE_PX) g.rect(x - r, y - r, size, size);
    else {
      g.moveTo(x + r, y);
      g.arc(x, y, r, 0, 2 * Math.PI);
    }
  }

  // ---- shapes: upright and level lines, and polygons of so many px around a point -----------------------------
  drawShape({ corners, color, line, shift = 0, xref, yref, x0, x1, y0, y1 }) {
    const { g } = this.pen, { box, X, Y } = this;
    const x = (v) => (xref === "paper" ? box.l + v * box.w : X(v)) + shift;
    const y = (v) => (yref === "paper" ? box.t + box.h * (1 - v) : Y(v));
    g.beginPath();
    if (corners) {
      for (const [dx, dy] of corners) g.lineTo(x(x0) + dx, y(y0) + dy);
      g.fillStyle = color;
      return g.fill();
    }
    g.moveTo(x(x0), y(y0));
    g.lineTo(x(x1), y(y1));
    this.stroke(line);
  }

  // ---- words ----------------------------------------------------------------------------------------------
  drawWords({ lines, bgcolor, x, y, xref, yref, xanchor = "center", yanchor = "middle", xshift = 0, yshift = 0 }) {
    const { g } = this.pen, { box } = this, high = LINE_PX * lines.length;
    const look = ({ bold }) => `${bold ? "700 " : ""}${FONT_PX}px ${MONO}`;
    const wide = Math.max(...lines.map((line) => {
      g.font = look(line);
      return g.measureText(line.words).width;
    }));
    const left = (xref === "paper" ? box.l + x * box.w : this.X(x)) + xshift - wide * SHARE[xanchor];
    const top = (yref === "paper" ? box.t + box.h * (1 - y) : this.up(y)) - yshift - high * SHARE[yanchor];
    if (bgcolor) {
      g.fillStyle = bgcolor;
      g.fillRect(left, top, wide, high);
    }
    g.textAlign = "left";
    lines.forEach((line, i) => {
      g.font = look(line);
      g.fillStyle = line.color;
      g.fillText(line.words, left, top + LINE_PX * i + FONT_PX);
    });
  }

  /** The dot that is nearest to a point of the plot, in px of its own box: {curveNumber, pointNumber}, or null. */
  near(x, y) {
    let best = null, least = NEAR_PX ** 2;
    for (const one of this.targets) {
      const far = (one.x - x) ** 2 + (one.y - y) ** 2;
      if (far <= least) [best, least] = [one, far];
    }
    return best;
  }
}
