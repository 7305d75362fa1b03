/* The page's one small window over a view, a sheet at the bottom on a phone. Its owner fills it, with text nodes
 * only. */
import { crossIcon, make, makeButton } from "./dom.js";
import { colorOf } from "./theme.js";

/**
 * @typedef {object} PopoverSpec
 * @property {string} name whose it is
 * @property {string} title
 * @property {number} x of the point of the window beside which it opens
 * @property {number} y
 * @property {boolean} [stays] after a click elsewhere
 * @property {(body: HTMLElement) => void} fill
 * @property {() => void} [closed] called when it has been closed, in whichever way
 */

const GAP = 14, EDGE = 8;

export const popover = {
  /** Whose it is while it is open. @type {string | null} */
  name: null,
  open,
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
  const values = { className: "rp-pop", role: "dialog", "aria-labelledby": heading.id, hidden: true };
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
}

/** Put it in its place again, after what it says has changed. */
function fit() {
  if (!current) return;
  const { x, y } = current, width = box.offsetWidth, height = box.offsetHeight;
  const left = x > innerWidth / 2 ? x - GAP - width : x + GAP;
  box.style.left = `${Math.max(EDGE, Math.min(innerWidth - width - EDGE, left))}px`;
  box.style.top = `${Math.max(EDGE, Math.min(innerHeight - height - EDGE, y - height / 3))}px`;
}

function close() {
  if (!current) return;
  const { closed } = current;
  current = popover.name = null;
  box.hidden = true;
  if (closed) closed();
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !current) return;
  event.stopPropagation(); // the next Escape ends a zoom
  event.preventDefault();
  close();
}, true);

document.addEventListener("pointerdown", (event) => {
  if (current && !current.stays && !box.contains(event.target)) close();
}, true);

// ---- what goes into it ------------------------------------------------------------------------------------
/** A line of a name and a value. */
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
