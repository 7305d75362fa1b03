/* Rings around what a demo's caption refers to: a token, a step, a preemption, rows of Steps, or a part of the page.
 * They follow what they surround, and are hidden while it is not in view. */
import { make, phone, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { store, tokenOf } from "../shared/store.js";
import { time } from "../shared/time.js";
import { demos } from "./demos.js";
import { LEFT, rows, timeline } from "./timeline.js";
import { view } from "./view.js";

/** @import { Ring } from "../shared/records.js" */

const EVERY_MS = 100, CLEAR_PX = 8, LABEL_GAP = 8, AFTER = 0.4, BESIDE = 0.1;
const PANELS = { gap: "rp-itl", step: "rp-tokens", preempted: "rp-steps", rows: "rp-steps" };

/** @typedef {{x: number, y: number, width: number, height: number}} Box in px of the viewport */

const shown = [0, 1].map(() => {
  const label = make("span"), root = make("div", { className: "rp-ring", "aria-hidden": "true", hidden: true }, label);
  document.body.append(root);
  return { root, label };
});
let timer = /** @type {ReturnType<typeof setInterval> | undefined} */ (undefined), stands = false;

on("demo", () => {
  clearInterval(timer);
  const rings = demos.caption ? demos.caption.rings : [];
  document.querySelectorAll(".rp-ringed").forEach((part) => part.classList.remove("rp-ringed"));
  for (const ring of rings) panelOf(ring)?.classList.add("rp-ringed"); // it may have been left out, see first.css
  if (rings.length) timer = setInterval(place, EVERY_MS);
  standStill(rings);
  const panels = rings.map(panelOf).reverse(), block = phone.matches ? "start" : "nearest";
  requestAnimationFrame(() => panels.forEach((panel) => panel?.scrollIntoView({ block }))); // a demo moves panels
  place();
});

/* Freeze the charts around the rings until the next caption; otherwise what they surround would move out of view.
 * All of the rows that are ringed are shown. */
function standStill(rings) {
  const [x] = rings.map(timeOf).filter((ms) => ms !== null);
  const spans = rings.filter(({ of }) => of === "rows").map((ring) => spanOf(requestsOf(ring))).filter(Boolean);
  const from = Math.min(...spans.map(([begun]) => begun)), to = Math.max(...spans.map(([, ended]) => ended));
  const x1 = Math.min(time.now(), x + AFTER * view.span), beside = (to - from) * BESIDE;
  if (stands) view.clear();
  stands = demos.own && x !== undefined;
  if (stands && spans.length) view.set(from - beside, to + beside);
  else if (stands) view.set(x1 - view.span, x1);
}

/** @param {Ring} ring */
function timeOf(ring) {
  if (ring.t !== undefined) return time.x(ring.t);
  if (ring.of === "preempted") return preemptedIn(ring)[0]?.x ?? null;
  if (ring.of === "rows") return spanOf(requestsOf(ring))?.[1] ?? null;
  const { steps } = store, row = ring.step === undefined ? -1 : store.stepRow(ring.step);
  return row < 0 ? null : time.x(steps.t1[row & steps.mask]);
}

/** @param {Ring} ring */
function requestsOf({ burst, requests }) {
  return [...store.requests.values()].filter((one) => requests ? requests.includes(one.rid) : one.burst === burst);
}

/** The preemptions of a burst's requests, at their view times, the first one first. @param {Ring} ring */
function preemptedIn(ring) {
  const preemptions = requestsOf(ring).flatMap(({ rid, preempted }) => preempted.map((t) => ({ rid, x: time.x(t) })));
  return preemptions.sort((a, b) => a.x - b.x);
}

/** The view times of the rows that are ringed, or null. */
export function ringedSpan() {
  const ring = demos.caption?.rings.find(({ of }) => of === "rows");
  return ring ? spanOf(requestsOf(ring)) : null;
}

/* The view times from the first request's submission to the last one's end, or until now. */
function spanOf(requests) {
  const ends = requests.map(({ finished }) => finished === null ? time.now() : time.x(finished));
  return requests.length ? [Math.min(...requests.map(({ submitted }) => time.x(submitted))), Math.max(...ends)] : null;
}

function place() {
  const rings = demos.caption ? demos.caption.rings : [];
  shown.forEach(({ root, label }, i) => {
    const ring = rings[i], box = ring && boxOf(ring);
    root.hidden = !box;
    if (!box) return;
    const clear = ring.of === "element" || ring.of === "rows" ? 2 : CLEAR_PX;
    const left = Math.max(0, box.x - clear), right = Math.min(innerWidth, box.x + box.width + clear);
    const width = `${right - left}px`, height = `${box.height + 2 * clear}px`;
    Object.assign(root.style, { left: `${left}px`, top: `${box.y - clear}px`, width, height });
    write(label, ring.label || "");
    label.hidden = !ring.label;
    root.classList.toggle("rp-of-rows", ring.of === "rows");
    const panel = panelOf(ring)?.getBoundingClientRect() ?? { left: 0, right: innerWidth };
    const rooms = [box.x - panel.left, panel.right - box.x - box.width], before = rooms[0] > rooms[1];
    const side = ring.of === "rows" ? "0" : "100%"; // below rows, beside what is small
    Object.assign(label.style, before ? { right: side, left: "" } : { left: side, right: "" });
    label.style.margin = before ? `0 ${LABEL_GAP}px 0 0` : `0 0 0 ${LABEL_GAP}px`;
    label.style.maxWidth = `${Math.max(...rooms) - clear - 3 * LABEL_GAP}px`;
  });
}

/** On narrow screens, a setting that is folded away is ringed where all of them open.
 * @param {Ring} ring
 * @returns {HTMLElement | null} */
function panelOf({ of, id }) {
  const panel = document.getElementById(PANELS[of] ?? id), settings = document.getElementById("rp-knobs-button");
  return panel?.closest("#rp-rail") && !panel.clientWidth && settings?.clientWidth ? settings : panel;
}

/** @param {Ring} ring @returns {Box | null} */
function boxOf(ring) {
  const panel = panelOf(ring);
  if (!panel || !panel.clientWidth) return null;
  if (ring.of === "element") return aroundScale(panel);
  if (ring.of === "preempted") return diamondIn(panel, ring);
  if (ring.of === "rows") return rowsIn(panel, ring);
  /** @type {any} */
  const plot = panel.querySelector(".rp-plot"), { left, top } = plot.getBoundingClientRect();
  const at = plot.place && (ring.of === "gap" ? gapAt(plot, ring) : stepAt(plot, ring));
  return at && { ...at, x: left + at.x, y: top + at.y };
}

/* A part of the page, with the scale below it if it is a slider. */
function aroundScale(panel) {
  const { x, y, width, height } = panel.getBoundingClientRect(), scale = panel.nextElementSibling;
  if (!scale?.querySelector(".rp-ticks")) return { x, y, width, height };
  return { x, y, width, height: Math.max(height, scale.getBoundingClientRect().bottom - y) };
}

/* The dots of a step are spread over it: the ring is as wide.
 * @param {Ring} ring */
function gapAt(plot, ring) {
  const { steps } = store, row = store.stepRow(ring.step), token = tokenOf(ring.request, ring.step);
  if (!token) return null;
  const begun = row < 0 ? token.t : steps.t0[row & steps.mask];
  const [from, to] = [inside(begun), time.x(token.t)].map((x) => plot.place(x, token.itl));
  return from && to && { x: from.x, y: to.y, width: to.x - from.x, height: 0 };
}

/* Where a step began; where that was before the time shown, the beginning of that time. */
function inside(t) {
  const { x0, x1 } = view.window(time.now());
  return Math.max(x0 + (x1 - x0) / 100, time.x(t));
}

/** @param {Ring} ring */
function stepAt(plot, ring) {
  const { steps } = store, row = store.stepRow(ring.step), slot = row & steps.mask;
  if (row < 0) return null;
  const top = plot.place(inside(steps.t0[slot]), steps.prompt_tokens[slot] + steps.decode_tokens[slot]);
  const bottom = plot.place(time.x(steps.t1[slot]), 0);
  return top && bottom && { x: top.x, y: top.y, width: bottom.x - top.x, height: bottom.y - top.y };
}

/** The first of a burst's diamonds that has a row. @param {HTMLElement} panel @param {Ring} ring */
function diamondIn(panel, ring) {
  const { left, top } = panel.querySelector("canvas").getBoundingClientRect();
  const drawn = preemptedIn(ring).find(({ rid }) => rows.of({ rid }) < timeline.shown);
  const x = drawn && timeline.x(drawn.x);
  return x > 0 && x < timeline.width ? { x: left + x, y: top + timeline.y(rows.of(drawn)), width: 0, height: 0 } : null;
}

/** The rows of requests, from the first submission to the last end, as far as they are in view.
 * @param {HTMLElement} panel
 * @param {Ring} ring */
function rowsIn(panel, ring) {
  const { left, top } = panel.querySelector("canvas").getBoundingClientRect();
  const drawn = requestsOf(ring).filter((known) => rows.of(known) >= 0 && rows.of(known) < timeline.shown);
  if (!drawn.length || !timeline.window) return null;
  const [from, to] = spanOf(drawn).map((ms) => Math.max(LEFT, Math.min(LEFT + timeline.plot, timeline.x(ms))));
  const ys = drawn.map((known) => timeline.y(rows.of(known))), high = timeline.high(rows.of(drawn[0]));
  const y = Math.min(...ys) - high / 2;
  return to > from && { x: left + from, y: top + y, width: to - from, height: Math.max(...ys) + high / 2 - y };
}
