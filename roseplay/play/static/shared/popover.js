/* The page's only popover, a sheet at the bottom on a phone. It opens beside a point, or for a button, which is then
 * marked as expanded and gets the focus back. Its owner fills it, with text nodes only. */
import { crossIcon, make, makeButton } from "./dom.js";
import { colorOf } from "./theme.js";

/**
 * @typedef {object} PopoverSpec
 * @property {string} name whose it is
 * @property {string} title
 * @property {number} [x] of the point of the window beside which it opens
 * @property {number} [y]
 * @property {DOMRect} [around] what lies there, which stays free
 * @property {HTMLElement} [opener] the button it opens for, instead of a point
 * @property {"right" | "below"} [side] of the opener, or of the rail where the opener is there
 * @property {boolean} [stays] after a click elsewhere
 * @property {(body: HTMLElement) => void} fill
 * @property {() => void} [closed] called when it has been closed, in whichever way
 */

const GAP = 14, EDGE = 8, BESIDE = 8;
const sheet = matchMedia("(max-width: 719px)"); // as in popover.css

export const popover = {
  /** The owner's name while it is open. @type {string | null} */
  name: null,
  open,
  toggle,
  refill,
  close,
  fit,
};

/** @type {PopoverSpec | null} */
let current = null;
let box = null, body = null, heading = null;

function build() {
  const cross = makeButton(crossIcon(), { "aria-label": "Close", onclick: close });
  heading = make("h4", { id: "rp-pop-title" });
  body = make("div", { className: "rp-pop-body", "aria-live": "polite" });
  const values = { className: "rp-pop", role: "dialog", "aria-labelledby": heading.id, tabIndex: -1, hidden: true };
  box = make("section", values, make("header", "", heading, cross), body);
  document.body.append(box);
}

/**
 * Open it beside a point, on its emptier side.
 * @param {PopoverSpec} spec
 */
function open(spec) {
  close();
  if (!box) build();
  current = spec;
  popover.name = spec.name;
  box.dataset.of = spec.name;
  heading.textContent = spec.title;
  body.replaceChildren();
  spec.fill(body);
  box.hidden = false;
  fit();
  uncover();
  if (!spec.opener) return;
  spec.opener.setAttribute("aria-expanded", "true");
  box.focus({ preventScroll: true });
}

/* On a phone it is a sheet over the lower part of the page, which scrolls so that its subject is visible above. */
function uncover() {
  const { opener, around, y } = current, { bottom } = opener ? opener.getBoundingClientRect() : around || { bottom: y };
  const covered = bottom + BESIDE - (innerHeight - box.offsetHeight);
  if (sheet.matches && covered > 0) scrollBy(0, covered);
}

/**
 * Open it for an opener, or close it if it is open for that.
 * @param {PopoverSpec} spec
 */
function toggle(spec) {
  if (current && current.opener === spec.opener) close();
  else open(spec);
}

/** Have its owner fill it again. */
function refill() {
  if (!current) return;
  body.replaceChildren();
  current.fill(body);
  fit();
}

/** Position it again after its contents have changed. */
function fit() {
  if (!current) return;
  const width = box.offsetWidth, height = box.offsetHeight, { left, top } = corner(current, width, height);
  box.style.left = `${Math.max(EDGE, Math.min(innerWidth - width - EDGE, left))}px`;
  box.style.top = `${Math.max(EDGE, Math.min(innerHeight - height - EDGE, top))}px`;
}

/**
 * Its corner, on a side with enough room, so that it does not cover its subject: the side that an opener asks for,
 * otherwise the emptier one.
 * @param {PopoverSpec} spec
 */
function corner({ x, y, around, opener, side }, width, height) {
  const free = opener ? opener.getBoundingClientRect() : around || { left: x, right: x, top: y, bottom: y };
  const gap = opener || around ? BESIDE : GAP, rail = opener && opener.closest("#rp-rail");
  const { bottom } = opener ? (opener.closest(".rp-kpi") || opener).getBoundingClientRect() : free; // its figure too
  const level = side ? free.top : (free.top + free.bottom) / 2 - height / 3;
  const onRight = { left: (rail ? rail.getBoundingClientRect().right : free.right) + gap, top: level };
  const onLeft = { left: free.left - gap - width, top: level };
  const below = { left: free.left, top: bottom + gap }, above = { left: free.left, top: free.top - gap - height };
  const fits = ({ left, top }) =>
    top === level
      ? left >= EDGE && left + width + EDGE <= innerWidth
      : top >= EDGE && top + height + EDGE <= innerHeight;
  const beside = free.left + free.right > innerWidth ? [onLeft, onRight] : [onRight, onLeft];
  if (side === "right") return [onRight, below].find(fits) || above;
  const places = side === "below" ? [below, above, ...beside] : [...beside, below, above];
  return places.find(fits) || places[0];
}

function close() {
  if (!current) return;
  const { closed, opener } = current, focused = box.contains(document.activeElement);
  current = popover.name = null;
  box.hidden = true;
  if (opener) opener.setAttribute("aria-expanded", "false");
  if (opener && focused) opener.focus({ preventScroll: true });
  if (closed) closed();
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !current) return;
  event.stopPropagation(); // the next Escape ends a zoom
  event.preventDefault();
  close();
}, true);

document.addEventListener("pointerdown", (event) => {
  const { target } = event;
  if (!current || current.stays || !(target instanceof Node) || box.contains(target)) return;
  if (!current.opener || !current.opener.contains(target)) close(); // the opener's own click closes it
}, true);

// ---- what goes into it ------------------------------------------------------------------------------------
/** A line with a name and a value. */
export function factRow(name, ...value) {
  return make("div", "", make("dt", "", name), make("dd", "", ...value));
}

export function factList(...rows) {
  return make("dl", "", ...rows.filter(Boolean));
}

/** A request's square and number. */
export function requestTag(rid) {
  const square = make("i");
  square.style.background = colorOf(rid);
  return make("span", "rp-who", square, `#${rid}`);
}
