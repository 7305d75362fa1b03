/* The page's only popover, a sheet at the bottom on a phone. It opens beside a point, or for a button, which is then
 * marked as expanded and gets the focus back. Its owner fills it, with text nodes only. */
import { crossIcon, make, makeButton, phone } from "./dom.js";
import { emit, on } from "./events.js";
import { colorOf, hueOf } from "./theme.js";

/** @typedef {object} PopoverSpec
 * @property {string} name whose it is
 * @property {string} title
 * @property {number} [x] of the point of the window beside which it opens
 * @property {number} [y]
 * @property {DOMRect} [around] what lies there, which stays free
 * @property {HTMLElement} [opener] the button it opens for, instead of a point
 * @property {"right" | "below"} [side] of the opener, or of the rail where the opener is there
 * @property {boolean} [stays] after a click elsewhere
 * @property {() => Node[]} fill its contents
 * @property {() => Promise<Node[] | null>} [asks] contents from the server, which replace them; null: there are none.
 *   Where the server refuses, they are its reason, and it is asked again if it is only busy.
 * @property {() => string} [news] changes when it has to be filled, or the server to be asked, again
 * @property {number} [rid] the request whose hue it has
 * @property {boolean} [quiet] whether screen readers read it only where the focus is
 * @property {() => void} [closed] called when it has been closed, in whichever way */

const GAP = 14, EDGE = 8, BESIDE = 8;
const AGAIN_MS = 700, BUSY_MS = 2000, BUSY = 503; // when to ask again

export const popover = {
  /** The owner's name while it is open. @type {string | null} */
  name: null,
  open,
  toggle,
  close,
  fit,
};

/** @type {PopoverSpec | null} */
let current = null;
let box = null, body = null, heading = null, seen = "";
/** @type {ReturnType<typeof setTimeout> | null} when to ask again */
let timer = null;

function build() {
  const cross = makeButton(crossIcon(), { "aria-label": "Close", onclick: close });
  heading = make("h4", { id: "rp-pop-title" });
  body = make("div", "rp-pop-body");
  const values = { className: "rp-pop", role: "dialog", "aria-labelledby": heading.id, tabIndex: -1, hidden: true };
  box = make("section", values, make("header", "", heading, cross), body);
  document.body.append(box);
}

/** Open it beside a point, on its emptier side. @param {PopoverSpec} spec */
function open(spec) {
  close();
  if (!box) build();
  current = spec;
  popover.name = spec.name;
  box.dataset.of = spec.name;
  heading.textContent = spec.title;
  body.setAttribute("aria-live", spec.quiet ? "off" : "polite");
  if (spec.rid !== undefined) body.style.setProperty("--hue", `var(--rp-c${hueOf(spec.rid)})`);
  box.hidden = false;
  refill();
  uncover();
  if (spec.asks) ask();
  if (!spec.opener) return;
  spec.opener.setAttribute("aria-expanded", "true");
  box.focus({ preventScroll: true });
}

/* On a phone it is a sheet over the lower part of the page, which scrolls so that its subject is visible above. */
function uncover() {
  const { opener, around, y } = current, { bottom } = opener ? opener.getBoundingClientRect() : around || { bottom: y };
  const covered = bottom + BESIDE - (innerHeight - box.offsetHeight);
  if (phone.matches && covered > 0) scrollBy(0, covered);
}

/** Open it for an opener, or close it if it is open for that. @param {PopoverSpec} spec */
function toggle(spec) {
  if (current && current.opener === spec.opener) close();
  else open(spec);
}

function refill() {
  seen = current.news?.();
  show(current.fill());
}

/* Put contents into it; those that are there already stay, because they may be being pressed. */
function show(contents) {
  for (const node of [...body.childNodes]) if (!contents.includes(node)) node.remove();
  contents.forEach((node, i) => body.childNodes[i] === node || body.insertBefore(node, body.childNodes[i] ?? null));
  fit();
}

async function ask() {
  const spec = current;
  timer = null;
  seen = spec.news?.();
  const answer = await spec.asks().catch((error) => error);
  if (current !== spec || !answer) return;
  show(answer instanceof Error ? [make("p", { role: "status" }, answer.message)] : answer);
  body.querySelector("input:checked")?.focus({ preventScroll: true }); // what is chosen in it
  if (answer.status === BUSY) timer = setTimeout(ask, BUSY_MS); // in a long step, say
}

function follow() {
  if (!current?.news || timer || current.news() === seen) return;
  if (current.asks) timer = setTimeout(ask, AGAIN_MS);
  else refill();
}
on("frame", () => queueMicrotask(follow)); // once all others have taken it

/** Position it again after its contents have changed. */
function fit() {
  if (!current) return;
  const width = box.offsetWidth, height = box.offsetHeight, { left, top } = corner(current, width, height);
  box.style.left = `${Math.max(EDGE, Math.min(innerWidth - width - EDGE, left))}px`;
  box.style.top = `${Math.max(EDGE, Math.min(innerHeight - height - EDGE, top))}px`;
}

/** Its corner, on a side with enough room, so that it does not cover its subject: the side that an opener asks for,
 * otherwise the emptier one.
 * @param {PopoverSpec} spec */
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
  clearTimeout(timer);
  timer = null;
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

/** The button, still without words, that opens the reason why no more of a request's prompt was cached. */
export const cachedButton = (rid, values = {}) =>
  makeButton("", {
    className: "rp-ask",
    title: "Why not more?",
    "aria-haspopup": "dialog",
    onclick: ({ currentTarget }) => emit("cached", { rid, element: currentTarget }),
    ...values,
  });

// ---- what goes into it ------------------------------------------------------------------------------------
export const factRow = (name, ...value) => make("div", "", make("dt", "", name), make("dd", "", ...value));

export const factList = (...rows) => make("dl", "", ...rows.filter(Boolean));

export const requestTag = (rid) =>
  make("span", "rp-who", make("i", { style: `background: ${colorOf(rid)}` }), `#${rid}`);
