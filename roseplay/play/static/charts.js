/* Rose.chart: one chart of the page. Gives all of them the same axes, type, colours and knob marks; what is drawn comes from the
 * chart's own file. Plotly, the page's own bundle, keeps axes and zooming; what moves with time is drawn over it by Rose.marks.
 * So that the axes stand still, they count from the window's "now", and Plotly hears only of what is another in them. */
"use strict";
(function (Rose) {
  const MONO = '"RP Mono", ui-monospace, monospace';
  const CONFIG = { displayModeBar: false, doubleClick: false, doubleClickDelay: 500, responsive: false, scrollZoom: false, showTips: false };
  const CLICK_PX = 4, PLOTLY_MS = 1000;
  const DRAG_MS = 8000; // a drag that seems to last longer than this was lost

  /* It is five megabytes of script: everything else is there and drawn before it is asked for. */
  const loaded = new Promise((done) => {
    if (window.Plotly || !window.RosePlotly) return done();
    const script = Object.assign(document.createElement("script"), { src: window.RosePlotly, onload: done });
    (window.requestIdleCallback || setTimeout)(() => document.head.append(script), { timeout: PLOTLY_MS });
  });

  const touch = matchMedia("(pointer: coarse)");

  /* spec: name, every, follows, timed (shares Rose.view), small, flags, margin {l, r, t, b}, legend (elements for the head's right side),
   * draw(frame) -> {traces, layout, empty}, times in seconds, hover(point) -> what is selected there, describe().
   * frame: {window, width, height (of the plot in px), right (px beside it), T (colours), seconds(ms)}. */
  Rose.chart = function (element, spec) {
    const plot = element.querySelector(".rp-plot"), head = element.querySelector(".rp-rt");
    const margin = spec.margin;
    const marks = Rose.marks(plot, margin), nothing = plot.appendChild(document.createElement("p"));
    nothing.className = "rp-nothing";
    nothing.hidden = true;
    let made = false, draggedSince = 0, shown = null, axesKey = "";

    const back = spec.timed && !spec.small ? Rose.button("back to now", "rp-back") : null;
    if (back) Object.assign(back, { hidden: true, onclick: Rose.view.clear });
    head.replaceChildren(...[back].filter(Boolean), ...(spec.legend || []));

    const panel = Rose.panel(plot, {
      ...spec,
      draw(width, height, now) {
        if (plot._dragging && made) { // Plotly's own flag: a redraw now would take the zoom box away
          draggedSince = draggedSince || performance.now();
          if (performance.now() - draggedSince < DRAG_MS) return false;
        }
        draggedSince = 0;
        const T = Rose.tokens();
        const frame = { T, width: width - margin.l - margin.r, height: height - margin.t - margin.b, right: margin.r };
        frame.window = spec.timed ? Rose.view.window(now) : null;
        frame.seconds = (ms) => onHalfPixel(ms, frame.window, frame.width);
        const drawn = spec.draw(frame), layout = { xaxis: {}, shapes: [], annotations: [], ...drawn.layout };
        if (spec.timed) {
          Object.assign(layout.xaxis, timeAxis(frame.window, frame.width));
          layout.shapes.push(edge(T));
          const taken = addKnobs(layout, frame, spec.flags);
          addCuts(layout, frame, spec.flags && taken);
        }
        nothing.hidden = !drawn.empty;
        if (drawn.empty) Rose.write(nothing, frame.window && !frame.window.live ? "Nothing here. Esc returns to now." : Rose.nothingYet());
        if (back) back.hidden = !Rose.view.zoom;
        shown = frame;
        const { shapes, annotations, ...axes } = layout;
        showAxes(axes, T, width, height);
        plot.drawn = { data: drawn.traces || [], layout };
        marks.draw(plot.drawn, width, height);
        if (column) column.update();
        return true;
      },
    });
    loaded.then(panel.soon);
    const column = spec.timed ? Rose.column(plot, margin, () => shown) : null;

    /* `layout` without what marks.js draws. */
    function showAxes(layout, T, width, height) {
      const axes = { ...base(T, width, height), ...layout };
      axes.xaxis = { ...axis(T, true), ...layout.xaxis };
      axes.yaxis = { ...axis(T, false), ...layout.yaxis };
      for (const name of ["range", "tickvals"]) if (spec.timed) axes.xaxis[name] = axes.xaxis[name].map((v) => tidy(v - shown.window.now / 1000));
      const key = JSON.stringify(axes), { Plotly } = window;
      if (!Plotly || key === axesKey) return;
      axesKey = key;
      if (made) return Plotly.react(plot, [], axes, CONFIG);
      Plotly.newPlot(plot, [], axes, CONFIG);
      made = true;
      listen();
    }

    const tidy = (seconds) => Math.round(seconds * 1e6) / 1e6;

    function base(T, width, height) {
      return {
        width, height, margin: { ...margin, pad: 0 }, showlegend: false, hovermode: false,
        dragmode: spec.timed && !touch.matches ? "zoom" : false,
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { family: MONO, size: 10, color: T.ink3 },
      };
    }

    function axis(T, isX) {
      return {
        showgrid: true, gridcolor: T.grid, gridwidth: 1, zeroline: false, showline: isX, linecolor: T.line2, linewidth: 1,
        ticks: "", fixedrange: !(isX && spec.timed) || touch.matches, automargin: false, ticklabeloverflow: "allow", ticklabelstandoff: isX ? 2 : 4,
      };
    }

    function listen() {
      plot.on("plotly_relayout", (change) => {
        const names = Object.keys(change);
        axesKey = ""; // they are no longer as they were asked for
        if (spec.timed && names.some((name) => name.startsWith("xaxis.range"))) {
          const [x0, x1] = plot.layout.xaxis.range, { now } = shown.window;
          Rose.view.set(x0 * 1000 + now, x1 * 1000 + now);
        }
        if (names.some((name) => name.startsWith("yaxis.range")) && spec.zoomedY) spec.zoomedY(plot.layout.yaxis.range.slice());
      });
      plot.on("plotly_doubleclick", Rose.view.clear);
      plot.addEventListener("dblclick", Rose.view.clear); // where the page is too busy for Plotly to see two clicks as one
      if (spec.hover) point();
    }

    /* Dots can be pointed at and clicked. */
    function point() {
      let pressed = null, over = null;
      const at = ({ clientX, clientY }) => {
        const { left, top } = plot.getBoundingClientRect(), found = marks.near(clientX - left, clientY - top);
        return found && spec.hover(found);
      };
      const leave = () => over && Rose.emit("hover", (over = null));
      plot.addEventListener("pointermove", (event) => {
        if (event.buttons) return;
        const found = at(event);
        plot.classList.toggle("rp-on-dot", Boolean(found));
        if (!found) return leave();
        over = found;
        Rose.emit("hover", found.rid);
      });
      plot.addEventListener("pointerleave", leave);
      plot.addEventListener("pointerdown", (event) => {
        pressed = event.button === 0 ? event : null;
      }, true);
      document.addEventListener("pointerup", (event) => { // Plotly lays a cover over the page while a button is down
        const moved = !pressed || Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) > CLICK_PX;
        pressed = null;
        const found = moved ? null : at(event);
        if (found) Rose.emit("select", found);
      }, true);
    }

    return panel;
  };

  // ---- the step that is pointed at --------------------------------------------------------------------------
  /* Shades it in every time chart; drawn over the plot, because redrawing the plot would be too slow for a pointer. */
  Rose.column = function (plot, margin, frame) {
    const shade = document.createElement("i");
    shade.className = "rp-column";
    shade.hidden = true;
    plot.append(shade);

    function update() {
      const { steps } = Rose.store, row = Rose.pointed === null ? -1 : Rose.store.stepRow(Rose.pointed), { window, width } = frame() || {};
      shade.hidden = row < 0 || !window;
      if (shade.hidden) return;
      const { x0, x1 } = Rose.stepSpan(row & steps.mask);
      const px = (ms) => Math.max(0, Math.min(width, ((ms - window.x0) / (window.x1 - window.x0)) * width));
      Object.assign(shade.style, {
        left: `${margin.l + px(x0)}px`, width: `${Math.max(1.5, px(x1) - px(x0))}px`, top: `${margin.t}px`, bottom: `${margin.b}px`,
      });
      shade.hidden = px(x1) <= 0 || px(x0) >= width;
    }
    Rose.on("step", update);

    plot.addEventListener("pointermove", (event) => {
      const { window, width } = frame() || {};
      if (!window || event.pointerType === "touch") return;
      const share = (event.clientX - plot.getBoundingClientRect().left - margin.l) / width;
      const found = share >= 0 && share <= 1 ? Rose.stepAt(window.x0 + share * (window.x1 - window.x0)) : null;
      if ((found && found.step) !== Rose.pointed) Rose.emit("step", found && found.step);
    });
    plot.addEventListener("pointerleave", () => Rose.emit("step", null));
    return { update };
  };

  // ---- time axis --------------------------------------------------------------------------------------------
  const minus = (text) => text.replace("-", "−");

  /** Where a time axis is labelled: [{x: ms, text}], counted from the window's now. `least`: px between two labels. */
  Rose.timeTicks = function ({ x0, x1, now, live }, width, least = 80) {
    const span = (x1 - x0) / 1000, most = Math.max(2, width / least);
    const step = live ? [1, 2, 3, 5].find((s) => span / s <= most) || 5 : Rose.axis(span, Math.floor(most)).step;
    const digits = Math.max(0, Math.min(3, Math.ceil(-Math.log10(step) + 0.01)));
    const ticks = [];
    for (let n = Math.ceil((x0 - now) / 1000 / step - 1e-6); n * step <= (x1 - now) / 1000 + 1e-6; n++) {
      const unit = ticks.length && width < 260 ? "" : " s";
      const text = n === 0 ? (Rose.time.stopped() ? "lost" : Rose.time.idle() ? "idle" : "now") : minus((n * step).toFixed(live ? 0 : digits)) + unit;
      ticks.push({ x: now + n * step * 1000, text });
    }
    return ticks;
  };

  function timeAxis(window, width) {
    const ticks = Rose.timeTicks(window, width);
    return {
      range: [window.x0 / 1000, window.x1 / 1000], tickmode: "array",
      tickvals: ticks.map(({ x }) => x / 1000), ticktext: ticks.map(({ text }) => text),
    };
  }

  /* Lines one pixel wide are sharp only between pixel borders. Seconds. */
  function onHalfPixel(ms, { x0, x1 }, width) {
    const perPixel = (x1 - x0) / width;
    return (x0 + (Math.round((ms - x0) / perPixel - 0.5) + 0.5) * perPixel) / 1000;
  }

  const edge = (T) => ({ ...Rose.upright("now", 0.5, T.line2), xref: "paper", xsizemode: "pixel", xanchor: 1, layer: "below" });

  // ---- marks on the time axis -------------------------------------------------------------------------------
  const FLAG = "M-3.5,13 L3.5,13 L3.5,9 L0,5 L-3.5,9 Z";
  const CLOSE_PX = 40, CHAR_PX = 6.1, WORTH_SAYING_MS = 2000;

  /* One rose line where settings changed; `flags`: with a flag and words above the plot. Answers where those words stand: [from, to] px. */
  function addKnobs(layout, { window, width, right, seconds, T }, flags) {
    const marks = Rose.knobMarks(window.x0, window.x1), taken = [];
    const perMs = width / (window.x1 - window.x0);
    marks.forEach((mark, i) => {
      const x = seconds(mark.x);
      layout.shapes.push(Rose.upright("knob", x, T.rose));
      if (!flags) return;
      layout.shapes.push({
        name: "knob flag", type: "path", path: FLAG, xsizemode: "pixel", ysizemode: "pixel", xanchor: x, yref: "paper", yanchor: 1,
        fillcolor: T.rose, line: { width: 0 }, layer: "above",
      });
      const next = marks[i + 1];
      const room = next ? (next.x - mark.x) * perMs : Infinity;
      const space = (mark.x - window.x0) * perMs;
      taken.push([space - 5, space + 5]);
      const long = mark.text.length * CHAR_PX + 12;
      const left = (window.x1 - mark.x) * perMs + right < long && space > long;
      if (room < CLOSE_PX || (!left && room < long)) return; // the newest keeps its words
      taken.push(left ? [space - long, space] : [space, space + long]);
      layout.annotations.push({
        ...Rose.words(T, "knob", `<b>${mark.text}</b>`, T.rose),
        x, yref: "paper", y: 1, xanchor: left ? "right" : "left", xshift: left ? -6 : 6, yanchor: "middle", yshift: 10,
      });
    });
    return taken;
  }

  /* Where idle time was left out; `taken`: with words above the plot where none are yet. */
  function addCuts(layout, { window, width, seconds, T }, taken) {
    for (const cut of Rose.time.cuts.slice().reverse()) {
      const at = cut.from - cut.before, length = cut.to - cut.from;
      if (at <= window.x0 || at >= window.x1) continue;
      layout.shapes.push({ ...Rose.upright("idle", seconds(at), T.line2, "2px,3px"), layer: "below" });
      const words = `idle ${Rose.duration(length)}`, half = (words.length * CHAR_PX) / 2 + 4;
      const px = ((at - window.x0) / (window.x1 - window.x0)) * width;
      if (!taken || length < WORTH_SAYING_MS || taken.some(([from, to]) => px + half > from && px - half < to)) continue;
      taken.push([px - half, px + half]);
      layout.annotations.push({
        ...Rose.words(T, "idle", words, T.ink3), x: seconds(at), xanchor: "center", yref: "paper", y: 1, yanchor: "middle", yshift: 10,
      });
    }
  }

  // ---- small things for the charts' own files ---------------------------------------------------------------
  Rose.duration = function (ms) {
    const [unit, length] = ms < 60000 ? ["s", 1000] : ms < 3600000 ? ["min", 60000] : ["h", 3600000];
    return `${Math.round(ms / length)} ${unit}`;
  };

  /** Words on a plot, with a halo; the caller says where. */
  Rose.words = (T, name, text, color) => ({
    name, text, font: { color, size: 10 }, bgcolor: Rose.fade(T.surface, 0.85),
  });

  /** A label at the right of the plot: its name over its value. */
  Rose.lineLabel = (T, y, name, value, color, shift = 0) => ({
    ...Rose.words(T, name, `${name}<br><b style="color:${color}">${value}</b>`, T.ink3),
    xref: "paper", x: 1, xanchor: "left", xshift: 7, y, yanchor: "middle", yshift: shift, bgcolor: null,
  });

  /** A line from the bottom of a plot to its top. */
  Rose.upright = (name, x, color, dash = "solid") => ({
    name, type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color, width: 1, dash }, layer: "above",
  });

  /** Traces: a line, and the area under one. */
  Rose.curve = (x, y, line) => ({ type: "scatter", mode: "lines", x, y, line });
  Rose.area = (x, y, color, shape = "linear") => ({ ...Rose.curve(x, y, { width: 0, shape }), fill: "tozeroy", fillcolor: color });

  /** An entry of a legend: its mark and its words. */
  Rose.legend = (mark, text, kind = "") => Rose.element("span", `rp-lg ${kind}`, mark, text);
  Rose.legendBox = (name) => Rose.svg(8, 8, ["rect", { width: 8, height: 8, fill: `var(--rp-${name})` }]);
  Rose.legendDot = (name) => Rose.svg(8, 8, ["circle", { cx: 4, cy: 4, r: 2.4, fill: `var(--rp-${name})` }]);
  Rose.legendLine = (name, width, dash = "") =>
    Rose.svg(14, 4, ["line", { x2: 14, y1: 2, y2: 2, stroke: `var(--rp-${name})`, "stroke-width": width, "stroke-dasharray": dash }]);

  /** Two words of which one is on; `fn` is told which, when another one is chosen. */
  Rose.toggle = function (label, words, fn) {
    const buttons = words.map((word) => Rose.button(word));
    buttons.forEach((button, i) => {
      button.setAttribute("aria-pressed", i === 0);
      button.onclick = () => {
        for (const other of buttons) other.setAttribute("aria-pressed", other === button);
        fn(words[i]);
      };
    });
    const group = Rose.element("span", "rp-tg", ...buttons);
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", label);
    return group;
  };
})(window.Rose);
