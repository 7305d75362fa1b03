/* Rose.marks: what a chart shows, on a canvas over Plotly's axes: curves, areas, dots, lines and words. All of it moves with
 * time, several times a second, and for that Plotly needs some thirty milliseconds, a canvas one or two.
 *
 *   marks.draw({data, layout}, width, height)   in Plotly's words for them, those that the charts use
 *   marks.near(x, y)    the dot that is nearest to a point of the plot: {curveNumber, pointNumber}, or null */
"use strict";
(function (Rose) {
  const NEAR_PX = 12, LINE = 1.3, SQUARE_PX = 2.2; // dots smaller than this are as good as squares
  const MONO = '"RP Mono", ui-monospace, monospace';

  Rose.marks = function (plot, margin) {
    const canvas = plot.appendChild(document.createElement("canvas")), pen = Rose.pen(canvas), { g } = pen;
    let box = null, X = null, Y = null, targets = []; // {x, y, curveNumber, pointNumber} of the dots that can be pointed at
    canvas.className = "rp-marks";
    canvas.setAttribute("aria-hidden", "true");

    function draw({ data, layout }, width, height) {
      pen.begin(width, height);
      box = { l: margin.l, t: margin.t, w: width - margin.l - margin.r, h: height - margin.t - margin.b };
      const [x0, x1] = layout.xaxis.range, [y0, y1] = layout.yaxis.range, log = layout.yaxis.type === "log";
      X = (v) => box.l + ((v - x0) / (x1 - x0)) * box.w;
      Y = (v, exponent = log ? Math.log10(v) : v) => box.t + box.h * (1 - (exponent - y0) / (y1 - y0));
      targets = [];
      const above = (shape) => shape.layer !== "below";
      g.save();
      g.beginPath();
      g.rect(box.l, 0, box.w + 1, box.t + box.h + 1);
      g.clip();
      layout.shapes.filter((shape) => !above(shape)).forEach(drawShape);
      data.forEach(drawTrace);
      layout.shapes.filter(above).forEach(drawShape);
      g.restore();
      layout.annotations.forEach(drawWords);
    }

    const dashes = (dash) => (dash && dash !== "solid" ? dash.split(",").map(parseFloat) : []);

    function stroke({ color, width, dash }) {
      if (!width) return;
      g.strokeStyle = color;
      g.lineWidth = width;
      g.setLineDash(dashes(dash));
      g.stroke();
      g.setLineDash([]);
    }

    // ---- traces ---------------------------------------------------------------------------------------------
    function drawTrace(trace, curveNumber) {
      if (trace.mode === "markers") return drawDots(trace, curveNumber);
      for (const run of whole(trace)) {
        g.beginPath();
        if (trace.fill) g.moveTo(run[0][0], Y(0));
        run.forEach(([x, y], i) => {
          if (i && trace.line.shape === "hv") g.lineTo(x, run[i - 1][1]);
          if (i || trace.fill) g.lineTo(x, y);
          else g.moveTo(x, y);
        });
        if (trace.fill) {
          g.lineTo(run[run.length - 1][0], Y(0));
          g.fillStyle = trace.fillcolor;
          g.fill();
        } else stroke(trace.line);
      }
    }

    /* A curve's points in px, in as many pieces as there are gaps in it, which are null. */
    function whole({ x, y }) {
      const runs = [[]];
      x.forEach((v, i) => {
        if (y[i] !== null) runs[runs.length - 1].push([X(v), Y(y[i])]);
        else if (runs[runs.length - 1].length) runs.push([]);
      });
      return runs.filter((run) => run.length);
    }

    function drawDots({ x, y, marker, hoverinfo }, curveNumber) {
      const paint = (i) => (Array.isArray(marker.color) ? marker.color[i] : marker.color);
      for (let from = 0, to; from < x.length; from = to) { // neighbours of one colour are one path
        g.beginPath();
        for (to = from; to < x.length && paint(to) === paint(from); to++) {
          const px = X(x[to]), py = Y(y[to]);
          if (px < box.l - 1 || px > box.l + box.w + 1 || py < box.t - 5 || py > box.t + box.h + 1) continue;
          dot(px, py, marker);
          if (hoverinfo !== "skip") targets.push({ x: px, y: py, curveNumber, pointNumber: to });
        }
        g.fillStyle = paint(from);
        g.fill();
        if (marker.line) stroke(marker.line);
      }
    }

    function dot(x, y, { size, symbol }) {
      const r = size / 2;
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
    function drawShape(shape) {
      const x = (v) => (shape.xref === "paper" ? box.l + v * box.w : X(v)), y = (v) => (shape.yref === "paper" ? box.t + box.h * (1 - v) : Y(v));
      g.beginPath();
      if (shape.type === "path") {
        const numbers = shape.path.match(/-?[\d.]+/g).map(Number);
        for (let i = 0; i < numbers.length; i += 2) g.lineTo(x(shape.xanchor) + numbers[i], y(shape.yanchor) - numbers[i + 1]);
        g.closePath();
        g.fillStyle = shape.fillcolor;
        return g.fill();
      }
      const aside = shape.xsizemode === "pixel" ? x(shape.xanchor) : null;
      g.moveTo(aside === null ? x(shape.x0) : aside + shape.x0, y(shape.y0));
      g.lineTo(aside === null ? x(shape.x1) : aside + shape.x1, y(shape.y1));
      stroke(shape.line);
    }

    // ---- words ----------------------------------------------------------------------------------------------
    const SHARE = { left: 0, center: 0.5, right: 1, top: 0, middle: 0.5, bottom: 1 };

    /* Lines of words, which may be bold, of a colour of their own. */
    function drawWords({ text, font, bgcolor, x, y, xref, yref, xanchor = "center", yanchor = "middle", xshift = 0, yshift = 0 }) {
      const lines = text.split("<br>").map((line) => ({
        words: line.replace(/<[^>]*>/g, ""), bold: line.includes("<b"), color: (/color:([^"]+)"/.exec(line) || [])[1] || font.color,
      }));
      const size = font.size || 10, high = size * LINE;
      for (const line of lines) {
        line.font = `${line.bold ? "700 " : ""}${size}px ${MONO}`;
        g.font = line.font;
        line.wide = g.measureText(line.words).width;
      }
      const wide = Math.max(...lines.map((line) => line.wide));
      const left = (xref === "paper" ? box.l + x * box.w : X(x)) + xshift - wide * SHARE[xanchor];
      const top = (yref === "paper" ? box.t + box.h * (1 - y) : Y(NaN, y)) - yshift - high * lines.length * SHARE[yanchor];
      if (bgcolor) {
        g.fillStyle = bgcolor;
        g.fillRect(left, top, wide, high * lines.length);
      }
      g.textAlign = "left";
      lines.forEach((line, i) => {
        g.font = line.font;
        g.fillStyle = line.color;
        g.fillText(line.words, left, top + high * i + size);
      });
    }

    /** In px of the plot's own box. */
    function near(x, y) {
      let best = null, least = NEAR_PX ** 2;
      for (const one of targets) {
        const far = (one.x - x) ** 2 + (one.y - y) ** 2;
        if (far <= least) [best, least] = [one, far];
      }
      return best;
    }

    return { draw, near };
  };
})(window.Rose);
