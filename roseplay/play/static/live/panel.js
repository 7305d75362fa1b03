/* Keeps views drawn: on a common beat and with the time of that beat, so that views that share an axis end at the same
 * "now" and a knob's line runs straight through all of them. A view is not drawn while it is hidden or unchanged. To
 * leave the main thread free in between, one view is drawn per tick. */
import { on } from "../shared/events.js";
import { store } from "../shared/store.js";
import { time } from "../shared/time.js";
import { view } from "./view.js";

/** @import { Panel, PanelSpec } from "../shared/types.js" */

const BEAT_MS = 125, TICK_MS = 20;
const MOST_SHARE = 0.3; // of the main thread; a slow machine gets fewer beats, not a stuck page
const DESCRIBE_MS = 5000; // the least time between two descriptions for screen readers
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");
const beat = { count: 0, at: 0, ms: BEAT_MS };

/** @type {LivePanel[]} */
export const panels = [];

class LivePanel {
  /**
   * @param {HTMLElement} box
   * @param {PanelSpec} spec
   */
  constructor(box, spec) {
    this.box = box;
    this.spec = spec;
    this.name = spec.name;
    this.every = spec.every;
    this.follows = spec.follows;
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
  }

  /** Draw at the next tick, whatever has changed. */
  soon() {
    this.key = "";
    this.due = time.now();
  }

  /** Draw now, where anything has changed. Returns whether it was drawn. */
  drawNow() {
    const { box, spec } = this, width = box.clientWidth, height = box.clientHeight, now = this.due;
    const key = `${store.version} ${Math.round(now)} ${view.serial} ${width} ${height}`;
    this.due = null;
    if (!width || !height) return false;
    this.describe();
    if (key === this.key) return false;
    const began = performance.now();
    if (spec.draw(width, height, now) === false) return false; // the user is dragging in it
    this.key = key;
    this.drawn = began;
    this.measure(performance.now() - began);
    this.describe();
    return true;
  }

  /* Describe what was drawn since the last description; drawings that follow soon are described when it is due
   * again. */
  describe() {
    const now = performance.now();
    if (!this.spec.describe || this.drawn <= this.described || now - this.described < DESCRIBE_MS) return;
    this.described = now;
    this.box.setAttribute("aria-label", this.spec.describe());
  }

  measure(took) {
    this.draws++;
    if (this.draws < 3) return; // the first ones set things up
    this.cost = this.cost ? this.cost + (took - this.cost) * 0.2 : took;
    this.longest = Math.max(this.longest, took);
  }
}

/**
 * Keep a view drawn into `box`, whose size it fills.
 * @param {HTMLElement} box
 * @param {PanelSpec} spec
 * @returns {Panel}
 */
export function createPanel(box, spec) {
  const panel = new LivePanel(box, spec);
  // An application gets the arrow keys; views without a description are read as they are.
  if (spec.describe) box.setAttribute("role", spec.keys ? "application" : "img");
  new ResizeObserver(panel.soon).observe(box);
  new IntersectionObserver((seen) => {
    panel.onScreen = seen[seen.length - 1].isIntersecting;
    if (panel.onScreen) panel.soon();
  }).observe(box);
  panels.push(panel);
  return panel;
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
  for (const panel of panels) if (panel.follows) panel.soon();
});
