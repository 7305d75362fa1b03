/* The canvas of one view of a result. It is drawn when the result, the limits, the size or the theme has changed;
 * while its tab is hidden it has no size and is not drawn. */
import { onKeys, write } from "page/shared/dom.js";
import { on } from "page/shared/events.js";
import { Panel } from "page/shared/panel.js";
import { palette } from "page/shared/theme.js";
import { RUN_WORDS } from "./mode.js";
import { lab, measuring } from "./state.js";

const compared = () => Boolean(lab.document);

/** @import { Area } from "page/shared/chart/axes.js" */
/** @import { Palette } from "page/shared/theme.js" */
/** @import { Pen } from "page/shared/pen.js" */

/** @typedef {{x: number, y: number, mark?: any}} Point where the pointer, or the keys' reading place, is */

/** @typedef {object} ViewSpec
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
 * @property {() => boolean} [has] whether there is something to draw; without it, whether a comparison is shown */

class LabView extends Panel {
  /** @param {HTMLElement} element @param {ViewSpec} spec */
  constructor(element, spec) {
    super(element, { .../** @type {any} */ (spec), canvas: "rp-lab-canvas", keys: false });
    this.keys = spec.keys || {};
    this.has = spec.has || compared;
    this.subtitle.setAttribute("aria-live", "polite");
    /** @type {Point | null} */
    this.point = null;
    this.listen();
  }

  area(width = this.box.clientWidth, height = this.box.clientHeight) {
    const { l, r, t, b } = this.spec.margin, x1 = width - r, y1 = height - b;
    return { x0: l, x1, y0: t, y1, width: x1 - l, height: y1 - t };
  }

  /** @override */
  draw(width, height) {
    const { pen, spec } = this, area = this.area(width, height), T = palette(), has = this.has();
    if (area.width < 20 || area.height < 20) return false;
    pen.begin(width, height);
    spec.draw(pen, area, T);
    const read = has && this.point ? spec.read(area, this.point) : null;
    if (read && read.marks) read.marks(pen, area, T);
    const empty = measuring() ? "Measuring." : `Press ${RUN_WORDS[lab.mode]}.`;
    if (!has) pen.note(empty, (area.x0 + area.x1) / 2, (area.y0 + area.y1) / 2);
    const { subtitle } = spec;
    write(this.subtitle, read ? read.words : typeof subtitle === "string" ? subtitle : subtitle());
  }

  /** @override */
  words() {
    return this.has() ? this.spec.describe() : `${this.spec.name}: nothing measured yet.`;
  }

  listen() {
    const { canvas } = this;
    canvas.addEventListener("pointermove", (event) => this.read({ x: event.offsetX, y: event.offsetY }));
    for (const name of ["pointerleave", "blur"]) canvas.addEventListener(name, () => this.read(null));
    onKeys(canvas, ({ key }) => {
      if (key === "Escape") this.read(null);
      const move = this.has() && this.keys[key];
      if (move) this.read(move(this.point, this.area()));
      return Boolean(move);
    });
    on("lab", (what) => {
      if (["document", "mode"].includes(what)) this.point = null;
      if (["document", "limits", "summary", "job", "mode", "points"].includes(what)) this.soon();
    });
  }

  read(point) {
    this.point = point;
    this.soon();
  }
}

/** Draw a view of the result into a panel's element. @param {HTMLElement} element @param {ViewSpec} spec */
export const createView = (element, spec) => new LabView(element, spec);
