/* The step timeline's alternative colours: the duration of a step or, without steps, of a gap between tokens, as a
 * shade between light and dark ink, with a legend. */
import { make, svg, write } from "../shared/dom.js";
import { format } from "../shared/format.js";
import { quantile } from "../shared/numbers.js";
import { slowedIn } from "../shared/past.js";
import { mix } from "../shared/theme.js";
import { timeline } from "./timeline.js";

/** @import { Palette } from "../shared/theme.js" */

const SHADES = 6, BOX_PX = 7;

/** The legend's entry: the shades between the words for the lightest and the darkest. */
export function shadesLegend() {
  const mixed = (i) => `color-mix(in srgb, var(--rp-ink) ${(100 * i) / (SHADES - 1)}%, var(--rp-decode))`;
  /** @returns {import("../shared/dom.js").Shape} */
  const box = (i) => ["rect", { x: i * BOX_PX, width: BOX_PX, height: 8, fill: mixed(i) }];
  const boxes = Array.from({ length: SHADES }, (_, i) => box(i));
  const shortest = make("span"), longest = make("span");
  const entry = make("span", "rp-lg rp-shades", shortest, svg(SHADES * BOX_PX, 8, ...boxes), longest);
  entry.title = "How long a step took, which is the gap before each of its tokens.";
  return { entry, shortest, longest };
}

/** Shades for the times in view, in ms; the legend says their ends. Returns the shade of one.
 * @param {Palette} T
 * @param {ReturnType<typeof shadesLegend>} legend
 * @param {"step" | "gap"} what */
export function inkShades(took, T, legend, what) {
  const sorted = Float32Array.from(took).sort(), low = took.length ? quantile(sorted, 0.5) : 0;
  const high = took.length ? Math.max(quantile(sorted, 0.99), low * 2) : 0;
  write(legend.shortest, took.length ? `${what} ≤ ${format.ms(low)}` : `short ${what}`);
  write(legend.longest, took.length ? `≥ ${format.ms(high)} ms${slowedIn(timeline.window)}` : `long ${what}`);
  const colors = Array.from({ length: SHADES }, (_, i) => mix(T.decode, T.ink, i / (SHADES - 1)));
  return (ms) => colors[Math.max(0, Math.min(SHADES - 1, Math.round(((ms - low) / (high - low)) * (SHADES - 1))))];
}
