/* One chart of live figures. All charts share the time axis, knob marks and pointing; each one's own module draws its
 * contents. */
import { Marks } from "../shared/chart/marks.js";
import { linear } from "../shared/chart/scale.js";
import { PlotlyAxes, plotlyLoaded } from "../shared/chart/plotly.js";
import { make, makeButton, write } from "../shared/dom.js";
import { emit, on } from "../shared/events.js";
import { Panel } from "../shared/panel.js";
import { pointing } from "../shared/pointing.js";
import { store } from "../shared/store.js";
import { palette } from "../shared/theme.js";
import { addCuts, addKnobs, nowLine, onHalfPixel, timeAxis } from "./axes.js";
import { stepAt, stepSpan } from "./span.js";
import { nothingIn, view } from "./view.js";

/** @import { Palette } from "../shared/theme.js" */
/** @import { TimeWindow } from "../shared/types.js" */

/** The frame of a chart: the size of its plot in px, the px beside it, the time shown, null for a chart without a time
 * axis, and the position of a time on its x axis.
 * @typedef {{T: Palette, width: number, height: number, right: number, window: TimeWindow,
 *   seconds: (ms: number) => number}} ChartFrame */

/** @typedef {{traces?: any[], layout: any, empty?: boolean, summary: string}} Drawn `summary`: for screen readers */

/** A view with axes that can be zoomed; times in seconds.
 * @typedef {object} ChartOnly
 * @property {boolean} [timed] shares the time that `live/view.js` shows
 * @property {boolean} [small] without the button "back to now"
 * @property {boolean} [flags] with words above the plot where a setting changed
 * @property {{l: number, r: number, t: number, b: number}} margin
 * @property {string} nothing what stands in it while there is nothing to draw
 * @property {(frame: ChartFrame) => Drawn} draw
 * @property {(point: {curveNumber: number, pointNumber: number}) => any} [hover] what lies at a point
 * @property {(range: number[]) => void} [zoomedY] */
/** @typedef {Omit<import("../shared/panel.js").PanelSpec, "draw" | "describe"> & ChartOnly} ChartSpec */

const CLICK_PX = 4;

const tidy = (seconds) => Math.round(seconds * 1e6) / 1e6;

export class Chart extends Panel {
  /** @param {HTMLElement} element a panel @param {ChartSpec} spec */
  constructor(element, spec) {
    const values = { className: "rp-back", hidden: true, onclick: view.clear };
    const back = spec.timed && !spec.small ? makeButton("back to now", values) : null;
    super(element, { .../** @type {any} */ (spec), head: [...(back ? [back] : []), ...(spec.head || [])] });
    this.back = back;
    this.summary = "";
    this.marks = new Marks(this.plot, spec.margin);
    this.nothing = make("p", { className: "rp-nothing", hidden: true });
    this.plot.append(this.nothing);
    /** @type {ChartFrame | null} */
    this.shown = null;
    const { margin, timed: zooms } = spec, zoomed = this.zoomed.bind(this);
    this.axes = new PlotlyAxes(this.plot, { margin, zooms, zoomed, cleared: view.clear });
    this.plot.place = this.place.bind(this);
    if (spec.timed) this.listenToSteps();
    if (spec.hover) this.listenToDots();
    plotlyLoaded.then(this.soon);
  }

  /** @override */
  draw(width, height, now) {
    if (this.axes.dragging()) return false;
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
    this.summary = drawn.summary;
    const { shapes: _shapes, annotations: _annotations, ...axes } = layout;
    this.showAxes(axes, width, height);
    this.plot.drawn = { data: drawn.traces || [], layout };
    this.marks.draw(this.plot.drawn, width, height);
    if (spec.timed) this.shadeStep();
    return true;
  }

  /** @override */
  words() {
    return this.summary;
  }

  /** The position of a view time and a value, in px from the plot's corner; null if it is not in view.
   * @returns {{x: number, y: number} | null} */
  place(ms, value) {
    const { X, Y, box } = this.marks;
    if (!box) return null;
    const x = X(ms / 1000), y = Y(value);
    return x >= box.l && x <= box.l + box.w && y >= box.t && y <= box.t + box.h ? { x, y } : null;
  }

  /** @returns {ChartFrame} */
  frame(width, height, now) {
    const { l, r, t, b } = this.spec.margin, window = this.spec.timed ? view.window(now) : null;
    const seconds = (ms) => onHalfPixel(ms, window, width - l - r);
    return { T: palette(), width: width - l - r, height: height - t - b, right: r, window, seconds };
  }

  /* Time axes count from the window's "now", so that they do not move. */
  showAxes(layout, width, height) {
    const { xaxis } = layout, { T, window } = this.shown;
    const fromNow = (values) => values.map((v) => tidy(v - window.now / 1000));
    const times = this.spec.timed ? { range: fromNow(xaxis.range), tickvals: fromNow(xaxis.tickvals) } : {};
    this.axes.show({ ...layout, xaxis: { ...xaxis, ...times } }, width, height, T);
  }

  zoomed(x, y) {
    const { shown, spec } = this;
    if (x && spec.timed) view.set(x[0] * 1000 + shown.window.now, x[1] * 1000 + shown.window.now);
    if (y && spec.zoomedY) spec.zoomedY(y);
  }

  /* The step that is pointed at is shaded in all charts, by an overlay: a redraw would be too slow for a pointer. */
  listenToSteps() {
    const { plot, spec: { margin } } = this;
    this.shade = make("i", { className: "rp-column", hidden: true });
    plot.append(this.shade);
    on("step", () => this.shadeStep());
    plot.addEventListener("pointermove", (event) => {
      if (!this.shown || event.pointerType === "touch") return;
      const { window, width } = this.shown;
      const share = (event.clientX - plot.getBoundingClientRect().left - margin.l) / width;
      const hit = share >= 0 && share <= 1 ? stepAt(window.x0 + share * (window.x1 - window.x0)) : null;
      if ((hit && hit.step) !== pointing.step) emit("step", hit && hit.step);
    });
    plot.addEventListener("pointerleave", () => emit("step", null));
  }

  shadeStep() {
    const { steps } = store, { shade, shown, spec: { margin } } = this;
    const row = pointing.step === null || !shown ? -1 : store.stepRow(pointing.step);
    shade.hidden = row < 0;
    if (shade.hidden) return;
    const { window, width } = shown, { x0, x1 } = stepSpan(row & steps.mask);
    const place = linear(window.x0, window.x1, 0, width), px = (ms) => Math.max(0, Math.min(width, place(ms)));
    const left = `${margin.l + px(x0)}px`, wide = `${Math.max(1.5, px(x1) - px(x0))}px`;
    Object.assign(shade.style, { left, width: wide, top: `${margin.t}px`, bottom: `${margin.b}px` });
    shade.hidden = px(x1) <= 0 || px(x0) >= width;
  }

  /* Dots can be pointed at and clicked. */
  listenToDots() {
    const { plot, marks, spec } = this;
    let down = null, over = null;
    const at = ({ clientX, clientY }) => {
      const { left, top } = plot.getBoundingClientRect(), mark = marks.near(clientX - left, clientY - top);
      return mark && spec.hover(mark);
    };
    const leave = () => over && emit("hover", over = null);
    plot.addEventListener("pointermove", (event) => {
      if (event.buttons) return;
      const dot = at(event);
      plot.classList.toggle("rp-on-dot", Boolean(dot));
      if (!dot) return leave();
      over = dot;
      emit("hover", dot.rid);
    });
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("pointerdown", (event) => {
      down = event.button === 0 ? event : null;
    }, true);
    document.addEventListener("pointerup", (event) => { // Plotly lays a cover over the page while a button is down
      const moved = !down || Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) > CLICK_PX;
      down = null;
      const dot = moved ? null : at(event);
      if (dot) emit("select", dot);
    }, true);
  }
}
