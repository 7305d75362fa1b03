/* Rose.lab.canvas: the canvas of one view of a result. Drawn when the result, the promise, the size or the theme changes, and not
 * on the page's beat; while its tab is hidden it has no size and is not drawn.
 *
 * spec: name, margin {l, r, t, b}, draw(pen, area, T), describe() -> text for who cannot see it,
 *       read(area, point) -> {words, marks(pen, area, T)} or null: what the pointer, or the keys' reading place, is on
 *       keys {ArrowLeft: (point, area) => point, …}: how arrows move the reading place
 * area: {x0, x1, y0, y1, width, height} in CSS pixels. The words stand where the panel's subtitle is otherwise. */
"use strict";
(function (Rose) {
  const { lab } = Rose;
  const EMPTY = "Press Run A and B.";

  lab.canvas = function (element, spec) {
    const box = element.querySelector(".rp-plot"), subtitle = element.querySelector(".rp-sub");
    const canvas = Rose.popover.element("canvas", "rp-lab-canvas");
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "img");
    subtitle.setAttribute("aria-live", "polite");
    box.append(canvas);
    const pen = Rose.pen(canvas), view = { canvas, subtitle: "", point: null, draws: 0, soon, element };
    let asked = 0;

    function soon() {
      if (!asked) asked = requestAnimationFrame(draw);
    }

    function area() {
      const { l, r, t, b } = spec.margin, x1 = box.clientWidth - r, y1 = box.clientHeight - b;
      return { x0: l, x1, y0: t, y1, width: x1 - l, height: y1 - t };
    }

    function draw() {
      asked = 0;
      const where = area(), T = Rose.tokens();
      if (where.width < 20 || where.height < 20) return;
      pen.begin(box.clientWidth, box.clientHeight);
      spec.draw(pen, where, T);
      const read = lab.document && view.point ? spec.read(where, view.point) : null;
      if (read && read.marks) read.marks(pen, where, T);
      if (!lab.document) say(where, T);
      Rose.write(subtitle, read ? read.words : view.subtitle);
      view.draws++;
    }

    function say(where, T) {
      pen.g.font = '400 12px "RP Sans", sans-serif';
      const words = lab.running() ? "Measuring." : EMPTY, x = (where.x0 + where.x1) / 2, y = (where.y0 + where.y1) / 2 + 4;
      pen.g.textAlign = "center";
      pen.g.lineWidth = 6;
      pen.g.strokeStyle = T.surface;
      pen.g.strokeText(words, x, y);
      pen.g.fillStyle = T.ink3;
      pen.g.fillText(words, x, y);
    }

    function point(to) {
      view.point = to;
      soon();
    }
    canvas.addEventListener("pointermove", (event) => point({ x: event.offsetX, y: event.offsetY }));
    canvas.addEventListener("pointerleave", () => point(null));
    canvas.addEventListener("blur", () => point(null));
    canvas.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return point(null);
      const move = spec.keys && spec.keys[event.key];
      if (!move || !lab.document || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      point(move(view.point, area()));
    });

    const describe = () => canvas.setAttribute("aria-label", lab.document ? spec.describe() : `${spec.name}: nothing measured yet.`);
    Rose.on("lab", (what) => {
      if (what === "document") view.point = null;
      if (["document", "limits", "summary", "job"].includes(what)) soon();
      if (["document", "limits"].includes(what)) describe();
    });
    Rose.on("theme", soon);
    new ResizeObserver(soon).observe(box);
    if (document.fonts) document.fonts.ready.then(soon);
    describe();
    return view;
  };

  // ---- what the views share ---------------------------------------------------------------------------------
  /** How an arm is drawn: A in ink, solid; B in rose, dashed. */
  lab.look = (arm, T) => (arm === "A" ? { color: T.ink, dash: [] } : { color: T.rose, dash: [5, 3] });

  /** A letter on its square, as in the table's head. */
  lab.badge = function (pen, arm, x, y, T) {
    pen.g.fillStyle = arm === "A" ? T.ink : T.rosefill;
    pen.g.beginPath();
    pen.g.roundRect(x, y, 14, 14, 2);
    pen.g.fill();
    pen.g.font = '700 10px "RP Mono", monospace';
    pen.g.textAlign = "center";
    pen.g.fillStyle = arm === "A" ? T.surface : "#ffffff";
    pen.g.fillText(arm, x + 7, y + 10.5);
  };

  /** A line through points, in an arm's colour. `strong`: the one that counts, else one repeat of several. */
  lab.stroke = function (pen, points, { color, dash }, strong) {
    const { g } = pen;
    g.save();
    g.strokeStyle = color;
    g.lineWidth = strong ? 1.75 : 1;
    g.globalAlpha = strong ? 1 : 0.3;
    g.lineJoin = "round";
    g.setLineDash(strong ? dash : []);
    g.beginPath();
    points.forEach(([x, y], i) => (i ? g.lineTo(x, y) : g.moveTo(x, y)));
    g.stroke();
    g.restore();
  };

  /** A ring on the place that is read. */
  lab.ring = function ({ g }, x, y, color, T) {
    g.fillStyle = T.surface;
    g.strokeStyle = color;
    g.lineWidth = 1.5;
    g.beginPath();
    g.arc(x, y, 3.5, 0, 2 * Math.PI);
    g.fill();
    g.stroke();
  };

  /** Where a logarithmic axis from `low` to `high` is labelled: 1, 2 and 5 of each power of ten, or as few as fit `most`. */
  lab.logTicks = function (low, high, most) {
    for (const firsts of [[1, 2, 5], [1, 3], [1]]) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
        for (const first of firsts) {
          const value = first * 10 ** power;
          if (value >= low * 0.999 && value <= high * 1.001) found.push(+value.toPrecision(3));
        }
      }
      if (found.length <= most || firsts.length === 1) return found;
    }
  };

  /** A figure as an axis writes it: 1 000 is 1k. */
  lab.short = (value) => (value >= 1000 && value % 100 === 0 ? `${value / 1000}k` : String(value));

  /** A figure on an axis of equal parts, with its thousands apart. */
  lab.plain = (value) => (value >= 1000 ? Rose.format.count(value) : String(+value.toPrecision(6)));

  lab.ascending = (values) => Float64Array.from(values.filter((value) => value !== null)).sort();
})(window.Rose);
