/* Makes all elements for the page's scripts. Text is always inserted as text nodes; no script of the page writes
 * markup. */

/** @typedef {[tag: string, attributes: Record<string, string | number>]} Shape */

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Record<string, any>} Values of an element's properties and attributes, such as `aria-label` */

/** An element; strings inside are text.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {string | Values} [values] its class, or all that is to be set
 * @param {...(Node | string)} inside
 * @returns {HTMLElementTagNameMap[T]} */
export function make(tag, values = "", ...inside) {
  const element = set(document.createElement(tag), typeof values === "string" ? {} : values);
  if (values && typeof values === "string") element.className = values;
  element.append(...inside);
  return element;
}

/** Set properties of an element, and attributes where it has no property of that name. Returns the element.
 * @template {Element} T
 * @param {T} element
 * @param {Values} values */
export function set(element, values) {
  for (const [name, value] of Object.entries(values)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, String(value));
  }
  return element;
}

/** A button that submits nothing, with words or a drawing.
 * @param {Node | string} inside
 * @param {string | Values} [values]
 * @param {...(Node | string)} more */
export const makeButton = (inside, values = "", ...more) =>
  set(make("button", values, inside, ...more), { type: "button" });

function drawn(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

/** A drawing beside words, hidden from screen readers. @param {...Shape} shapes */
export function svg(width, height, ...shapes) {
  const root = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
  root.append(...shapes.map(([tag, attributes]) => drawn(tag, attributes)));
  return root;
}

export const pathIcon = (path) => svg(14, 14, ["path", { d: path, fill: "currentColor" }]);

export const crossIcon = () =>
  svg(10, 10, ["path", { d: "M1 1l8 8M9 1l-8 8", stroke: "currentColor", "stroke-width": 1.4 }]);

/** Calls `onKey` for each key on an element, except those with Ctrl, Alt or Meta; if it returns true, the key has no
 * other effect.
 * @param {(event: KeyboardEvent) => boolean} onKey */
export function onKeys(element, onKey) {
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !onKey(event)) return;
    event.preventDefault();
    event.stopPropagation();
  });
}

/** Have the arrow keys choose the next of some radios in a group, as in a native one. */
export const onArrows = (group, radios) =>
  onKeys(group, ({ key }) => {
    const by = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[key], all = radios();
    if (!by || !all.length) return false;
    const next = all[(all.indexOf(document.activeElement) + by + all.length) % all.length];
    next.click();
    next.focus();
    return true;
  });

/** Scroll an element into view within a box, whose first `above` px are covered; the page itself does not scroll. */
export function scrollWithin(box, element, above = 0, apart = 0) {
  const at = element.getBoundingClientRect(), frame = box.getBoundingClientRect();
  if (at.top < frame.top + above) box.scrollTop -= frame.top + above - at.top + apart;
  else if (at.bottom > frame.bottom) box.scrollTop += at.bottom - frame.bottom + apart;
}

/** Whether the page scrolls: then the wheel scrolls it, over an element too, until that has the focus. */
export const pageScrolls = () => document.documentElement.scrollHeight > innerHeight + 1;

/** Whether the page is laid out for a phone, as in the styles. */
export const phone = matchMedia("(max-width: 859px)");

/** Write text if it has changed; keeping the text node preserves selections and saves a layout. */
export function write(element, text) {
  const { firstChild: node, textContent } = element;
  if (textContent === text) return;
  if (text && node?.nodeName === "#text" && node === element.lastChild) node.data = text;
  else element.textContent = text;
}
