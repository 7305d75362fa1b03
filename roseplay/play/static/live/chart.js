/* One chart of the page: the axes, type, colours and knob marks that all of them share; what is drawn comes from the
 * chart's own module. Plotly, the page's own bundle, keeps axes and zooming; what moves with time is drawn over it by
 * marks.js. So that the axes stand still, they count from the window's "now", and Plotly is called only when they
 * have changed. */
import { make, makeButton, write } from "../shared/dom.js";
import { emit } from "../shared/events.js";
import { given } from "../shared/given.js";
import { palette } from "../shared/theme.js";
import { addCuts, addKnobs, nowLine, onHalfPixel, timeAxis } from "./axes.js";
import { stepColumn } from "./column.js";
import { Marks } from "./marks.js";
import { createPanel } from "./panel.js";
import { nothingIn, view } from "./view.js";

/** @import { ChartFrame, ChartSpec, Panel } from "../shared/types.js" */

const MONO = '"RP Mono", ui-monospace, monospace';
const OFF = { displayModeBar: false, doubleClick: false, responsive: false, scrollZoom: false, showTips: false };
const CONFIG = { ...OFF, doubleClickDelay: 500 };
const CLICK_PX = 4, PLOTLY_MS = 1000;
const DRAG_MS = 8000; // a drag that seems to last longer than this was lost

/* It is five megabytes of script: everything else is there and drawn before it is asked for. */
const loaded = new Promise((done) => {
  if (window.Plotly || !given.plotly) return done();
  const script = Object.assign(document.createElement("script"), { src: given.plotly, onload: done });
  const load = () => document.head.append(script);
  if ("requestIdleCallback" in window) requestIdleCallback(load, { timeout: PLOTLY_MS });
  else setTimeout(load);
});

const touch = matchMedia("(pointer: coarse)");
const tidy = (seconds) => Math.round(seconds * 1e6) / 1e6;

class Chart {
  /**
   * @param {HTMLElement} element a panel
   * @param {ChartSpec} spec
   */
  constructor(element, spec) {
    this.spec = spec;
    this.plot = element.querySelector(".rp-plot");
    this.marks = new Marks(this.plot, spec.margin);
    this.nothing = make("p", { className: "rp-nothing", hidden: true });
    this.plot.append(this.nothing);
    const values = { className: "rp-back", hidden: true, onclick: view.clear };
    this.back = spec.timed && !spec.small ? makeButton("back to now", values) : null;
    element.querySelector(".rp-rt").replaceChildren(...(this.back ? [this.back] : []), ...(spec.legend || []));
    this.made = false; // whether Plotly has drawn it
    this.draggedSince = 0;
    /** @type {ChartFrame | null} */
    this.shown = null;
    this.axesKey = "";
    this.plot.place = this.place.bind(this);
    this.panel = createPanel(this.plot, { ...spec, draw: this.draw.bind(this) });
    this.shadeStep = spec.timed ? stepColumn(this.plot, spec.margin, () => this.shown) : () => {};
    loaded.then(this.panel.soon);
  }

  draw(width, height, now) {
    if (this.dragging()) return false;
    const { spec } = this, frame = this.frame(width, height, now), drawn = spec.draw(frame);
    const layout = { xaxis: {}, shapes: [], annotations: [], ...drawn.layout };
    if (spec.timed) {
      Object.assign(layout.xaxis, timeAxis(frame.window, frame.width));
      layout.shapes.push(nowLine(frame.T));
      const taken = addKnobs(layout, frame, spec.flags);
      addCuts(layout, frame, spec.flags && taken);
    }
    this.nothing.hidden = !drawn.empty;
    if (drawn.empty) write(this.nothing, nothingIn(frame.window, spec.nothing));
    if (this.back) this.back.hidden = !view.zoom;
    this.shown = frame;
    const { shapes: _shapes, annotations: _annotations, ...axes } = layout;
    this.showAxes(axes, width, height);
    this.plot.drawn = { data: drawn.traces || [], layout };
    this.marks.draw(this.plot.drawn, width, height);
    this.shadeStep();
    return true;
  }

  /* Whether the user is drawing a zoom box, by Plotly's own flag: a redraw now would remove it. */
  dragging() {
    if (!this.plot._dragging || !this.made) this.draggedSince = 0;
    else {
      this.draggedSince = this.draggedSince || performance.now();
      if (performance.now() - this.draggedSince < DRAG_MS) return true;
      this.draggedSince = 0;
    }
    return false;
  }

  /**
   * Where a moment of view time and a value lie, in px from the plot's corner; null where they are not in view.
   * @param {number} ms
   * @param {number} value
   * @returns {{x: number, y: number} | null}
   */
  place(ms, value) {
    if (!this.shown || !this.plot.drawn) return null;
    const { window, width, height } = this.shown, { type, range } = this.plot.drawn.layout.yaxis;
    const along = (ms - window.x0) / (window.x1 - window.x0);
    const up = ((type === "log" ? Math.log10(value) : value) - range[0]) / (range[1] - range[0]);
    if (along < 0 || along > 1 || up < 0 || up > 1) return null;
    return { x: this.spec.margin.l + along * width, y: this.spec.margin.t + (1 - up) * height };
  }

  /** @returns {ChartFrame} */
  frame(width, height, now) {
    const { l, r, t, b } = this.spec.margin, window = this.spec.timed ? view.window(now) : null;
    const seconds = (ms) => onHalfPixel(ms, window, width - l - r);
    return { T: palette(), width: width - l - r, height: height - t - b, right: r, window, seconds };
  }

  /* Has Plotly draw the axes of `layout`, where they are others than before. */
  showAxes(layout, width, height) {
    const { Plotly } = window, { plot, shown } = this;
    const axes = { ...this.base(width, height), ...layout };
    axes.xaxis = { ...this.axis(true), ...layout.xaxis };
    axes.yaxis = { ...this.axis(false), ...layout.yaxis };
    for (const name of this.spec.timed ? ["range", "tickvals"] : []) {
      axes.xaxis[name] = axes.xaxis[name].map((v) => tidy(v - shown.window.now / 1000));
    }
    const key = JSON.stringify(axes);
    if (!Plotly || key === this.axesKey) return;
    this.axesKey = key;
    if (this.made) return Plotly.react(plot, [], axes, CONFIG);
    Plotly.newPlot(plot, [], axes, CONFIG);
    this.made = true;
    this.listen();
  }

  base(width, height) {
    return {
      width,
      height,
      margin: { ...this.spec.margin, pad: 0 },
      showlegend: false,
      hovermode: false,
      dragmode: this.spec.timed && !touch.matches ? "zoom" : false,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: MONO, size: 10, color: this.shown.T.ink3 },
    };
  }

  axis(isX) {
    const { T } = this.shown;
    return {
      showgrid: true,
      gridcolor: T.grid,
      gridwidth: 1,
      zeroline: false,
      showline: isX,
      linecolor: T.line2,
      linewidth: 1,
      ticks: "",
      fixedrange: !(isX && this.spec.timed) || touch.matches,
      automargin: false,
      ticklabeloverflow: "allow",
      ticklabelstandoff: isX ? 2 : 4,
    };
  }

  listen() {
    const { plot, spec } = this;
    plot.on("plotly_relayout", (change) => {
      const names = Object.keys(change), changed = (axis) => names.some((name) => name.startsWith(`${axis}.range`));
      this.axesKey = ""; // they are no longer as they were asked for
      if (spec.timed && changed("xaxis")) {
        const [x0, x1] = plot.layout.xaxis.range, { now } = this.shown.window;
        view.set(x0 * 1000 + now, x1 * 1000 + now);
      }
      if (changed("yaxis") && spec.zoomedY) spec.zoomedY(plot.layout.yaxis.range.slice());
    });
    plot.on("plotly_doubleclick", view.clear);
    plot.addEventListener("dblclick", view.clear); // where the page is too busy for Plotly to see two clicks as one
    if (spec.hover) this.listenToDots();
  }

  /* Dots can be pointed at and clicked. */
  listenToDots() {
    const { plot, marks, spec } = this;
    let pressed = null, over = null;
    const at = ({ clientX, clientY }) => {
      const { left, top } = plot.getBoundingClientRect(), found = marks.near(clientX - left, clientY - top);
      return found && spec.hover(found);
    };
    const leave = () => over && emit("hover", over = null);
    plot.addEventListener("pointermove", (event) => {
      if (event.buttons) return;
      const found = at(event);
      plot.classList.toggle("rp-on-dot", Boolean(found));
      if (!found) return leave();
      over = found;
      emit("hover", found.rid);
    });
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("pointerdown", (event) => {
      pressed = event.button === 0 ? event : null;
    }, true);
    document.addEventListener("pointerup", (event) => { // Plotly lays a cover over the page while a button is down
      const moved = !pressed || Math.hypot(event.clientX - pressed.clientX, event.clientY - pressed.clientY) > CLICK_PX;
      pressed = null;
      const found = moved ? null : at(event);
      if (found) emit("select", found);
    }, true);
  }
}

/**
 * Keep a chart drawn in a panel's element.
 * @param {HTMLElement} element
 * @param {ChartSpec} spec
 * @returns {Panel}
 */
export const createChart = (element, spec) => new Chart(element, spec).panel;
