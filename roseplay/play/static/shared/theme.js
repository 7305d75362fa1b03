/* The page's colours for scripts, read from the CSS variables --rp-* of the current theme. Emits "theme" when they have
 * changed, so that views are drawn again. */
import { emit } from "./events.js";
import { pointing } from "./pointing.js";
import { laneOf } from "./store.js";

const NAMES =
  ("bg surface raised well line line2 grid ink ink2 ink3 rose rosefill rosewash prompt decode shared cached " +
    "cachedline free ok").split(" ");
const HUES = 8, GREYS = 3; // of lanes; after them, of other requests
const POINTED = 4; // the first hue of one of these that is pointed at: most pages show four lanes

/** @typedef {Record<string, string> & {hues: string[]}} Palette {bg, surface, …, free, ok, hues: [c0 … c10]} as CSS
 *   colours */

/** @type {Palette | null} */
let known = null;

/** @returns {Palette} */
export function palette() {
  if (known) return known;
  const style = getComputedStyle(document.body);
  const read = (name) => sixDigits(style.getPropertyValue(`--rp-${name}`).trim() || "#888888");
  const hues = Array.from({ length: HUES + GREYS }, (_, i) => read(`c${i}`));
  const colors = /** @type {Palette} */ ({ ...Object.fromEntries(NAMES.map((name) => [name, read(name)])), hues });
  if (style.getPropertyValue("--rp-ink")) known = colors; // before the style sheet is there, ask again next time
  return colors;
}

const sixDigits = (color) => color.replace(/^#(.)(.)(.)$/, "#$1$1$2$2$3$3");

const isPointedAt = (rid) => pointing.rid === rid || pointing.selected?.rid === rid;

/** Which hue a request has that answers in a lane; in none, null, it is grey unless it is pointed at. */
export function hueAt(rid, lane) {
  if (lane !== null) return (lane - 1) % HUES;
  return (isPointedAt(rid) ? POINTED : HUES) + rid % GREYS;
}

export const hueOf = (rid) => hueAt(rid, laneOf(rid));

export const colorOf = (rid) => palette().hues[hueOf(rid)];

/** A #rrggbb colour with an opacity. */
export function fade(color, alpha) {
  const n = parseInt(color.slice(1), 16);
  return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${alpha})`;
}

/** A colour between two #rrggbb ones, in the same format. */
export function mix(from, to, share) {
  const a = parseInt(from.slice(1), 16), b = parseInt(to.slice(1), 16);
  const part = (shift) => Math.round(((a >> shift) & 255) + (((b >> shift) & 255) - ((a >> shift) & 255)) * share);
  return `#${((part(16) << 16) | (part(8) << 8) | part(0)).toString(16).padStart(6, "0")}`;
}

/** The text colour that can be read on a #rrggbb colour. */
export function textOn(color) {
  const n = parseInt(color.slice(1), 16);
  const luma = 0.3 * (n >> 16) + 0.59 * ((n >> 8) & 255) + 0.11 * (n & 255);
  return luma > 140 ? "#101317" : "#ffffff";
}

let dark = document.body.classList.contains("dark");
new MutationObserver(() => {
  if (document.body.classList.contains("dark") === dark) return;
  dark = !dark;
  known = null;
  emit("theme");
}).observe(document.body, { attributes: true, attributeFilter: ["class"] });
