/* The page's views, in all tabs and in replays. A view is declared: what its head holds, what it draws, how it
 * is described to screen readers, and its table.
 *
 * Views are drawn on a common beat and with the time of that beat, so that those that share an axis end at the same
 * "now" and a knob's line runs straight through all of them. A view is not drawn while it is hidden or unchanged. To
 * leave the main thread free in between, one view is drawn per tick. */
import { make, set, write } from "./dom.js";
import { on } from "./events.js";
import { createPen } from "./pen.js";
import { store } from "./store.js";
import { AsTable } from "./table.js";
import { time } from "./time.js";

/** @typedef {object} PanelSpec
 * @property {string} name
 * @property {number} [every] drawn at each so many beats; without it, only when `soon` is called
 * @property {boolean} [follows] drawn again when another request is pointed at
 * @property {boolean} [keys] has keys of its own
 * @property {string} [canvas] the class of a canvas to draw on; without it, `draw` fills `box`
 * @property {HTMLElement} [box] by default the panel's plot
 * @property {(Node | string)[]} [head] what stands at the right of its head
 * @property {import("./table.js").TableSpec} [table] the same for people who cannot see it or want to read it
 * @property {Draw} [draw]
 * @property {() => string} [describe] what it shows, for screen readers */

/** Draws a view of a size in CSS pixels at the view time of its beat; returns false where it cannot draw now.
 * @typedef {(width: number, height: number, now: number) => boolean | void} Draw */

const BEAT_MS = 125, TICK_MS = 20;
const MOST_SHARE = 0.3; // of the main thread; a slow machine gets fewer beats, not a stuck page
const DESCRIBE_MS = 5000; // the least time between two descriptions for screen readers
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const beat = { count: 0, at: 0, ms: BEAT_MS };

/** @type {Panel[]} */
export const panels = [];

export class Panel {
  /** Keep a view drawn in a panel's element. @param {HTMLElement} element @param {PanelSpec} spec */
  constructor(element, spec) {
    this.element = element;
    /** @type {any} of a kind of panel: with what that kind adds */
    this.spec = spec;
    this.name = spec.name;
    this.every = spec.every ?? Infinity;
    this.onScreen = true;
    /** @type {number | null} */
    this.due = null; // the view time to draw it for
    this.key = ""; // of what was drawn last
    this.drawn = 0;
    this.described = -Infinity;
    this.draws = 0;
    this.cost = 0; // ms that drawing takes
    this.longest = 0;
    this.soon = this.soon.bind(this);
    /** @type {any} */
    this.plot = element.querySelector(".rp-plot");
    this.subtitle = element.querySelector(".rp-sub");
    this.head = element.querySelector(".rp-rt");
    this.build(spec);
    this.watch();
  }

  /** @param {PanelSpec} spec */
  build({ name, canvas, box, keys, table, head = [] }) {
    this.canvas = canvas ? make("canvas", { className: canvas, tabIndex: 0, ariaLabel: name }) : null;
    this.pen = this.canvas && createPen(this.canvas);
    this.said = keys ? make("span", { className: "rp-said", role: "status" }) : null; // what the keys have chosen
    this.table = table ? new AsTable(table) : null;
    this.box = this.canvas || box || this.plot;
    if (this.box !== this.plot) this.plot.append(this.box, ...(this.said ? [this.said] : []));
    this.table?.bind(this.element);
    if (head.length || this.table) this.show(...head, ...(this.table ? [this.table.button] : []));
  }

  watch() {
    new ResizeObserver(this.soon).observe(this.box);
    new IntersectionObserver((seen) => {
      this.onScreen = seen[seen.length - 1].isIntersecting;
      if (this.onScreen) this.soon();
    }).observe(this.box);
    panels.push(this);
  }

  /** Show something else at the right of its head. @param {...(Node | string)} contents */
  show(...contents) {
    this.head.replaceChildren(...contents);
  }

  /** Give it another title, and the term that it explains. @param {string} title @param {string} [term] */
  rename(title, term = title) {
    const head = this.element.querySelector("h3"), button = head.querySelector("button") || head;
    write(button, title);
    button.dataset.term = term;
  }

  /** Draw at the next tick, whatever has changed. */
  soon() {
    this.key = "";
    this.due = time.now();
  }

  /** Draw now, where anything has changed. Returns whether it was drawn. */
  drawNow() {
    const { box } = this, width = box.clientWidth, height = box.clientHeight, now = this.due;
    const key = `${store.version} ${Math.round(now)} ${width} ${height}`;
    this.due = null;
    if (!width || !height) return false;
    this.describe();
    if (key === this.key) return false;
    const began = performance.now();
    if (this.draw(width, height, now) === false) return false; // the user is dragging in it
    this.key = key;
    this.drawn = began;
    this.measure(performance.now() - began);
    this.describe();
    return true;
  }

  /** @type {Draw} */
  draw(width, height, now) {
    return this.spec.draw(width, height, now);
  }

  /** What it shows, for screen readers; undefined: it is read as it is. @returns {string | undefined} */
  words() {
    return this.spec.describe?.();
  }

  /* Describe what was drawn since the last description; drawings of a beat that follow soon are described when it is
   * due again. */
  describe() {
    const now = performance.now(), least = this.spec.every ? DESCRIBE_MS : 0;
    if (!this.draws || this.drawn <= this.described || now - this.described < least) return;
    const words = this.words();
    if (words === undefined) return;
    this.described = now;
    set(this.box, { role: this.said ? "application" : "img", "aria-label": words }); // applications get arrow keys
  }

  measure(took) {
    this.draws++;
    if (this.draws < 3) return; // the first ones set things up
    this.cost = this.cost ? this.cost + (took - this.cost) * 0.2 : took;
    this.longest = Math.max(this.longest, took);
  }
}

function nextBeat(at) {
  const unfinished = panels.some((panel) => panel.due !== null && panel.onScreen);
  if (at - beat.at < beat.ms || unfinished) return;
  beat.at = at;
  beat.count++;
  const now = time.now();
  const seen = panels.filter((panel) => panel.onScreen && panel.box.isConnected);
  for (const panel of seen) {
    const every = reducedMotion.matches ? Math.max(4, panel.every) : panel.every;
    if (beat.count % every === 0) panel.due = now;
  }
  const share = seen.reduce((sum, panel) => sum + panel.cost / panel.every, 0) / BEAT_MS;
  beat.ms = BEAT_MS * Math.max(1, share / MOST_SHARE);
}

setInterval(() => {
  if (document.hidden) return;
  nextBeat(performance.now());
  const due = panels.filter((panel) => panel.due !== null && panel.onScreen).sort((a, b) => a.drawn - b.drawn);
  for (const panel of due) if (panel.drawNow()) break;
}, TICK_MS);

const all = () => panels.forEach((panel) => panel.soon());
for (const name of ["theme", "reset", "zoom", "select"]) on(name, all);
if (document.fonts) document.fonts.ready.then(all);

/** @type {number | null} */
let hovered = null;
on("hover", (rid) => {
  if (hovered === rid) return;
  hovered = rid;
  for (const panel of panels) if (panel.spec.follows) panel.soon();
});
