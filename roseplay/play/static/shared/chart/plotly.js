/* Axes that can be zoomed: Plotly, from the page's own bundle, draws them and handles the pointer. It takes some thirty
 * milliseconds, so it is called only when they have changed; marks.js draws everything that moves over them. */
import { THIN } from "../format.js";
import { given } from "../given.js";

/** @import { Palette } from "../theme.js" */

const MONO = '"RP Mono", ui-monospace, monospace';
const OFF = { displayModeBar: false, doubleClick: false, responsive: false, scrollZoom: false, showTips: false };
const CONFIG = { ...OFF, doubleClickDelay: 500 };
const PLOTLY_MS = 1000;
const DRAG_MS = 8000; // a drag that seems to last longer than this was lost

/** Resolves when Plotly is loaded. It is a large script, so everything else is drawn before it is fetched. */
export const plotlyLoaded = new Promise((done) => {
  if (window.Plotly || !given.plotly) return done();
  const script = Object.assign(document.createElement("script"), { src: given.plotly, onload: done });
  const load = () => document.head.append(script);
  if ("requestIdleCallback" in window) requestIdleCallback(load, { timeout: PLOTLY_MS });
  else setTimeout(load);
});

const touch = matchMedia("(pointer: coarse)");

/** @typedef {object} AxesSpec
 * @property {{l: number, r: number, t: number, b: number}} margin
 * @property {boolean} [zooms] whether a box can be drawn to zoom into
 * @property {(x: number[] | null, y: number[] | null) => void} zoomed gets the ranges that the user has changed
 * @property {() => void} cleared by a double click */

export class PlotlyAxes {
  /** @param {HTMLElement} plot @param {AxesSpec} spec */
  constructor(plot, spec) {
    /** @type {any} */
    this.plot = plot;
    this.spec = spec;
    this.made = false; // whether Plotly has drawn them
    this.pressed = -Infinity; // when the button went down that is down on them
    this.key = "";
  }

  /** Whether the user may be drawing a zoom box: a redraw now would remove it. */
  dragging() {
    return performance.now() - this.pressed < DRAG_MS;
  }

  /** Draw the axes of `layout`, in Plotly's words, if they are others than before.
   * @param {{xaxis: any, yaxis: any}} layout
   * @param {number} width of plot and margin
   * @param {Palette} T */
  show(layout, width, height, T) {
    const { Plotly } = window, { plot } = this;
    const axes = { ...this.base(width, height, T), ...layout };
    axes.xaxis = { ...this.axis(true, T), ...layout.xaxis };
    axes.yaxis = { ...this.axis(false, T), ...layout.yaxis };
    const key = JSON.stringify(axes);
    if (!Plotly || key === this.key) return;
    this.key = key;
    if (this.made) return Plotly.react(plot, [], axes, CONFIG);
    Plotly.newPlot(plot, [], axes, CONFIG);
    this.made = true;
    this.listen();
  }

  base(width, height, T) {
    return {
      width,
      height,
      margin: { ...this.spec.margin, pad: 0 },
      separators: `.${THIN}`,
      showlegend: false,
      hovermode: false,
      dragmode: this.spec.zooms && !touch.matches ? "zoom" : false,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: MONO, size: 10, color: T.ink3 },
    };
  }

  axis(isX, T) {
    return {
      separatethousands: true,
      showgrid: true,
      gridcolor: T.grid,
      gridwidth: 1,
      zeroline: false,
      showline: isX,
      linecolor: T.line2,
      linewidth: 1,
      ticks: "",
      fixedrange: !(isX && this.spec.zooms) || touch.matches,
      automargin: false,
      ticklabeloverflow: "allow",
      ticklabelstandoff: isX ? 2 : 4,
    };
  }

  listen() {
    const { plot, spec } = this;
    plot.addEventListener("pointerdown", ({ button }) => {
      if (spec.zooms && button === 0 && !touch.matches) this.pressed = performance.now();
    }, true);
    for (const end of ["pointerup", "pointercancel"]) { // Plotly lays a cover over the page while a button is down
      document.addEventListener(end, () => (this.pressed = -Infinity), true);
    }
    plot.on("plotly_relayout", (change) => {
      const names = Object.keys(change);
      const range = (axis) =>
        names.some((name) => name.startsWith(`${axis}.range`)) ? plot.layout[axis].range.slice() : null;
      this.key = ""; // they are no longer as requested
      spec.zoomed(range("xaxis"), range("yaxis"));
    });
    plot.on("plotly_doubleclick", spec.cleared);
    plot.addEventListener("dblclick", spec.cleared); // where the page is too busy for Plotly to see two clicks as one
  }
}
