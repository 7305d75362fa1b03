/* Entries of a panel's legend, and the small switch in its head. */
import { make, makeButton, svg } from "./dom.js";

export const legendEntry = (mark, text, kind = "") => make("span", `rp-lg ${kind}`, mark, text);

export const legendBox = (name) => svg(8, 8, ["rect", { width: 8, height: 8, fill: `var(--rp-${name})` }]);

export const legendDot = (name) => svg(8, 8, ["circle", { cx: 4, cy: 4, r: 2.4, fill: `var(--rp-${name})` }]);

export function legendLine(name, width, dash = "", length = 14) {
  const look = { stroke: `var(--rp-${name})`, "stroke-width": width, "stroke-dasharray": dash };
  return svg(length, 4, ["line", { x2: length, y1: 2, y2: 2, ...look }]);
}

/** Show which of some buttons are on.
 * @param {Iterable<Element>} buttons
 * @param {(button: any, i: number) => boolean} on */
export const press = (buttons, on) =>
  [...buttons].forEach((button, i) => button.setAttribute("aria-pressed", String(on(button, i))));

/** A few words of which one is on.
 * @param {(word: string) => void} chosen called when another one is chosen
 * @param {number} [at] which is on at first */
export function segmented(label, words, chosen, at = 0) {
  const buttons = words.map((word, i) => makeButton(word, { "aria-pressed": i === at, onclick }));

  function onclick({ currentTarget }) {
    press(buttons, (button) => button === currentTarget);
    chosen(currentTarget.textContent);
  }

  return make("span", { className: "rp-tg", role: "group", "aria-label": label }, ...buttons);
}
