/* A canvas that is sharp on every screen, and the few drawing functions that our drawings use. */
import { palette } from "./theme.js";

/** @typedef {ReturnType<typeof createPen>} Pen */

export const CHAR_PX = 6.1; // the width of a character of axis words

/* Words in any font, from their left. */
const words = (g) => ({
  width(words, font) {
    g.font = font;
    return g.measureText(words).width;
  },

  /** Write them. Returns where they end. */
  words(words, x, y, font, color) {
    g.font = font;
    g.textAlign = "left";
    g.fillStyle = color;
    g.fillText(words, x, y);
    return x + g.measureText(words).width;
  },
});

/* Simple shapes. */
const shapes = (g) => ({
  fill(color, x, y, width, height) {
    g.fillStyle = color;
    g.fillRect(x, y, width, height);
  },

  frame(x, y, width, height, color) {
    g.strokeStyle = color;
    g.lineWidth = 1.5;
    g.strokeRect(x, y, width, height);
  },

  /** A circle, hollow without a fill. */
  circle(x, y, r, fill, stroke, width = 1.5) {
    g.beginPath();
    g.arc(x, y, r, 0, 2 * Math.PI);
    if (fill) {
      g.fillStyle = fill;
      g.fill();
    }
    g.strokeStyle = stroke;
    g.lineWidth = width;
    g.stroke();
  },

  dot(x, y, r, color) {
    g.beginPath();
    g.arc(x, y, r, 0, 2 * Math.PI);
    g.fillStyle = color;
    g.fill();
  },

  /** A line through points. @param {number[][]} points */
  path(points, color, width, dash = [], opacity = 1) {
    g.save();
    Object.assign(g, { strokeStyle: color, lineWidth: width, lineJoin: "round", globalAlpha: opacity });
    g.setLineDash(dash);
    g.beginPath();
    for (const [x, y] of points) g.lineTo(x, y);
    g.stroke();
    g.restore();
  },
});

/** What draws on a canvas; `g` is its 2d context. Coordinates are CSS pixels. @param {HTMLCanvasElement} canvas */
export function createPen(canvas) {
  const g = canvas.getContext("2d");

  /** An empty canvas of this size. */
  function begin(width, height, scale = devicePixelRatio || 1) {
    const w = Math.round(width * scale), h = Math.round(height * scale);
    if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
  }

  function line(x0, y0, x1, y1, color, dash = []) {
    g.strokeStyle = color;
    g.lineWidth = 1;
    g.setLineDash(dash);
    g.beginPath();
    g.moveTo(x0, y0);
    g.lineTo(x1, y1);
    g.stroke();
    g.setLineDash([]);
  }

  /** Axis words, with a halo so that they can be read over data. */
  function text(words, x, y, color, align = /** @type {CanvasTextAlign} */ ("left"), bold = false) {
    g.font = `${bold ? "700 " : ""}10px "RP Mono", monospace`;
    g.textAlign = align;
    g.lineJoin = "round";
    g.lineWidth = 3;
    g.strokeStyle = palette().surface;
    g.strokeText(words, x, y);
    g.fillStyle = color;
    g.fillText(words, x, y);
  }

  /** The mark of a preemption; with its exclamation mark where there is room. */
  function diamond(x, y, r, fill, stroke) {
    g.beginPath();
    g.moveTo(x, y - r);
    g.lineTo(x + r, y);
    g.lineTo(x, y + r);
    g.lineTo(x - r, y);
    g.closePath();
    g.fillStyle = fill;
    g.fill();
    g.strokeStyle = g.fillStyle = stroke;
    g.lineWidth = 1.25;
    g.stroke();
    if (r <= 5) return;
    g.fillRect(x - 0.6, y - 2.6, 1.2, 3.2);
    g.fillRect(x - 0.6, y + 1.6, 1.2, 1.2);
  }

  /** Words around a point, in place of a drawing. */
  function note(words, x, y) {
    g.font = '400 12px "RP Sans", sans-serif';
    g.textAlign = "center";
    g.lineWidth = 6;
    g.strokeStyle = palette().surface;
    g.strokeText(words, x, y + 4);
    g.fillStyle = palette().ink3;
    g.fillText(words, x, y + 4);
  }

  function badge(words, x, y, size, fill, color) {
    g.fillStyle = fill;
    g.beginPath();
    g.roundRect(x, y, size, size, 2);
    g.fill();
    g.font = '700 10px "RP Mono", monospace';
    g.textAlign = "center";
    g.fillStyle = color;
    g.fillText(words, x + size / 2, y + size / 2 + 3.5);
  }

  return { g, begin, line, text, diamond, note, badge, ...shapes(g), ...words(g) };
}

/** Where a line one pixel wide is sharp. */
export const sharp = (v) => Math.round(v - 0.5) + 0.5;
