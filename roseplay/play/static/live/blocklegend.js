/* The legend under the block map, with the counts of each kind. */
import { make, svg, write } from "../shared/dom.js";
import { format } from "../shared/format.js";

/** @returns {import("../shared/dom.js").Shape} */
const rect = (x, width, color, y = 0, height = 13) => ["rect", { x, y, width, height, fill: `var(--rp-${color})` }];
/** @type {import("../shared/dom.js").Shape} */
const three = ["path", { d: "M3 3h3v5h-3v-1h2v-1h-2v-1h2v-1h-2z", fill: "var(--rp-surface)" }];
/** @type {import("../shared/dom.js").Shape} */
const hollow = ["rect", { x: 1.5, y: 0.5, width: 7, height: 12, fill: "none", stroke: "var(--rp-cachedline)" }];
/** @type {[string, import("../shared/dom.js").Shape[], string][]} */
const MARKS = [
  ["active", [rect(0, 4, "c0"), rect(5, 4, "c1"), rect(10, 3, "c4")], "one owner"],
  ["shared", [rect(1, 7, "shared"), three, rect(1, 7, "c0", 11, 2)], "shared"],
  ["cached", [hollow], "cached"],
  ["pinned", [hollow, rect(1, 8, "ink", 0, 2)], "pinned"],
  ["free", [rect(1, 8, "free")], "free"],
];

/** Put a line of marks and counts under a plot. Returns functions that write the counts, and those of states. */
export function blockLegend(plot) {
  const count = () => make("b", "", "–");
  const entry = (shapes, words) => make("span", "rp-lg", svg(13, 13, ...shapes), `${words} `, count());
  /** @type {[string, HTMLElement][]} */
  const entries = MARKS.map(([name, shapes, words]) => [name, entry(shapes, words)]);
  const unit = make("span", "", " blocks");
  entries.push(["saved", make("span", "rp-lg rp-saves", "saves ", count(), unit)]);
  for (const [name, element] of entries) element.dataset.of = name;
  const states = make("span", "rp-lg rp-narrow"); // where the panel's head has no room for them
  plot.after(make("div", "rp-under", ...entries.map(([, element]) => element), states));
  const pinned = entries.find(([name]) => name === "pinned")[1];
  const places = entries.map(([name, element]) => [name, element.querySelector("b")]);
  return [
    (counts) => {
      pinned.style.display = counts.pinned ? "" : "none";
      unit.style.display = counts.pinned ? "none" : ""; // there is no room for both
      places.forEach(([name, place]) => write(place, format.count(counts[name])));
    },
    (words) => write(states, words),
  ];
}
