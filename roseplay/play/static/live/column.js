/* The step that is pointed at, shaded in every time chart. The shade is an overlay, because redrawing the plot would be
 * too slow for a pointer. */
import { linear } from "../shared/chart/scale.js";
import { make } from "../shared/dom.js";
import { emit, on } from "../shared/events.js";
import { pointing } from "../shared/pointing.js";
import { store } from "../shared/store.js";
import { stepAt, stepSpan } from "./span.js";

/** @import { ChartFrame } from "./chart.js" */

const NONE = { window: null, width: 0 };

/**
 * Shade the step in a chart, and emit "step" when the pointer moves to another one. Returns a function that moves the
 * shade.
 * @param {HTMLElement} plot
 * @param {{l: number, t: number, b: number}} margin
 * @param {() => ChartFrame | null} frame what the chart was drawn into last
 */
export function stepColumn(plot, margin, frame) {
  const shade = make("i", { className: "rp-column", hidden: true });
  plot.append(shade);

  function update() {
    const { steps } = store, { window, width } = frame() || NONE;
    const row = pointing.step === null ? -1 : store.stepRow(pointing.step);
    shade.hidden = row < 0 || !window;
    if (shade.hidden) return;
    const { x0, x1 } = stepSpan(row & steps.mask);
    const place = linear(window.x0, window.x1, 0, width), px = (ms) => Math.max(0, Math.min(width, place(ms)));
    Object.assign(shade.style, {
      left: `${margin.l + px(x0)}px`,
      width: `${Math.max(1.5, px(x1) - px(x0))}px`,
      top: `${margin.t}px`,
      bottom: `${margin.b}px`,
    });
    shade.hidden = px(x1) <= 0 || px(x0) >= width;
  }
  on("step", update);

  plot.addEventListener("pointermove", (event) => {
    const { window, width } = frame() || NONE;
    if (!window || event.pointerType === "touch") return;
    const share = (event.clientX - plot.getBoundingClientRect().left - margin.l) / width;
    const found = share >= 0 && share <= 1 ? stepAt(window.x0 + share * (window.x1 - window.x0)) : null;
    if ((found && found.step) !== pointing.step) emit("step", found && found.step);
  });
  plot.addEventListener("pointerleave", () => emit("step", null));
  return update;
}
