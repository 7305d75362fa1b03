/* The canvas of one view of a result. It is drawn when the result, the limits, the size or the theme has changed;
 * while its tab is hidden it has no size and is not drawn. */
import { make, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { createPen } from "../shared/pen.js";
import { palette } from "../shared/theme.js";
import { running } from "./job.js";
import { RUN_WORDS } from "./mode.js";
import { lab } from "./state.js";

const compared = () => Boolean(lab.document);

/** @import { Area } from "../shared/chart/axes.js" */
/** @import { Palette } from "../shared/theme.js" */
/** @import { Pen } from "../shared/pen.js" */

/** @typedef {{x: number, y: number, mark?: any}} Point where the pointer, or the keys' reading place, is */

/**
 * @typedef {object} ViewSpec
 * @property {string} name
 * @property {string | (() => string)} subtitle where the words of what is read stand at other times
 * @property {{l: number, r: number, t: number, b: number}} margin
 * @property {(pen: Pen, area: Area, T: Palette) => void} draw
 * @property {() => string} describe the result, for who cannot see it
 * @property {(area: Area, point: Point) => {words: string, marks?: (pen: Pen, area: Area, T: Palette) => void} |
 *   null} read
 * what lies at a point
 * @property {Record<string, (point: Point | null, area: Area) => Point | null>} [keys] how arrows move the reading
 *   place
 * @property {() => boolean} [has] whether there is something to draw; without it, whether a comparison is shown
 */

class LabView {
  /**
   * @param {HTMLElement} element
   * @param {ViewSpec} spec
   */
  constructor(element, spec) {
    this.spec = spec;
    this.has = spec.has || compared;
    this.box = element.querySelector(".rp-plot");
    this.subtitle = element.querySelector(".rp-sub");
    this.subtitle.setAttribute("aria-live", "polite");
    this.canvas = make("canvas", { className: "rp-lab-canvas", tabIndex: 0, role: "img" });
    this.box.append(this.canvas);
    this.pen = createPen(this.canvas);
    /** @type {Point | null} */
    this.point = null;
    this.asked = 0;
    this.soon = this.soon.bind(this);
    this.listen();
    this.describe();
  }

  /** Draw at the next frame. */
  soon() {
    if (!this.asked) this.asked = requestAnimationFrame(() => this.draw());
  }

  area() {
    const { l, r, t, b } = this.spec.margin, x1 = this.box.clientWidth - r, y1 = this.box.clientHeight - b;
    return { x0: l, x1, y0: t, y1, width: x1 - l, height: y1 - t };
  }

  draw() {
    const { pen, box, spec } = this, area = this.area(), T = palette();
    this.asked = 0;
    if (area.width < 20 || area.height < 20) return;
    pen.begin(box.clientWidth, box.clientHeight);
    spec.draw(pen, area, T);
    const read = this.has() && this.point ? spec.read(area, this.point) : null;
    if (read && read.marks) read.marks(pen, area, T);
    const empty = running() ? "Measuring." : `Press ${RUN_WORDS[lab.mode]}.`;
    if (!this.has()) pen.note(empty, (area.x0 + area.x1) / 2, (area.y0 + area.y1) / 2);
    const { subtitle } = spec;
    write(this.subtitle, read ? read.words : typeof subtitle === "string" ? subtitle : subtitle());
  }

  listen() {
    const { canvas, spec } = this;
    canvas.addEventListener("pointermove", (event) => this.read({ x: event.offsetX, y: event.offsetY }));
    canvas.addEventListener("pointerleave", () => this.read(null));
    canvas.addEventListener("blur", () => this.read(null));
    canvas.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return this.read(null);
      const move = spec.keys && spec.keys[event.key];
      if (!move || !this.has() || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.read(move(this.point, this.area()));
    });
    on("lab", (what) => {
      if (["document", "mode"].includes(what)) this.point = null;
      if (["document", "limits", "summary", "job", "mode", "points"].includes(what)) this.soon();
      if (["document", "limits", "mode", "points"].includes(what)) this.describe();
    });
    on("theme", this.soon);
    new ResizeObserver(this.soon).observe(this.box);
    if (document.fonts) document.fonts.ready.then(this.soon);
  }

  read(point) {
    this.point = point;
    this.soon();
  }

  describe() {
    const words = this.has() ? this.spec.describe() : `${this.spec.name}: nothing measured yet.`;
    this.canvas.setAttribute("aria-label", words);
  }
}

/**
 * Draw a view of the result into a panel's element.
 * @param {HTMLElement} element
 * @param {ViewSpec} spec
 */
export const createView = (element, spec) => new LabView(element, spec);
