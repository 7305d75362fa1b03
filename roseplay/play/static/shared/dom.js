/* Every element that a script makes. Text goes in as text nodes, whatever it says; no script of the page writes
 * markup. */

/** @typedef {[tag: string, attributes: Record<string, string | number>]} Shape */

const SVG = "http://www.w3.org/2000/svg";

/**
 * An element; strings inside are text.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string} [className]
 * @param {...(Node | string)} inside
 * @returns {HTMLElementTagNameMap[T]}
 */
export function make(tag, className = "", ...inside) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...inside);
  return element;
}

/** A button that submits nothing, with words or a drawing. */
export function makeButton(inside, className = "") {
  const button = make("button", className, inside);
  button.type = "button";
  return button;
}

function drawn(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/**
 * A drawing beside words, hidden from screen readers.
 * @param {number} width
 * @param {number} height
 * @param {...Shape} shapes
 */
export function svg(width, height, ...shapes) {
  const root = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  root.append(...shapes.map(([tag, attributes]) => drawn(tag, attributes)));
  return root;
}

/** A 14 px drawing of one filled path. */
export const pathIcon = (path) => svg(14, 14, ["path", { d: path, fill: "currentColor" }]);

/** The drawing on buttons that close or stop. */
export const crossIcon = () =>
  svg(10, 10, ["path", { d: "M1 1l8 8M9 1l-8 8", stroke: "currentColor", "stroke-width": 1.4 }]);

/** Write text where it has changed; a text node that stays put keeps selections and costs no layout. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
