/* The live table of requests: the accessible equivalent of the step timeline. It has a row for each request; a click or
 * Enter selects it, here and in the other views. It is written only while it is shown. While it has the pointer or the
 * focus, its rows keep their order, and new ones are added below them. */
import { make, makeButton, onKeys, phone, scrollWithin, write } from "../shared/dom.js";
import { saveFile } from "../shared/download.js";
import { emit, on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { segmented } from "../shared/legend.js";
import { Panel } from "../shared/panel.js";
import { popover } from "../shared/popover.js";
import { pointing } from "../shared/pointing.js";
import { time } from "../shared/time.js";
import { isOver } from "../shared/waits.js";
import { asCsv, CACHED, COLUMNS, FILTERS, listed, makeRow, showParts, unfoldedFacts } from "./requestrows.js";
import { nothingIn, view } from "./view.js";

/** @import { Request } from "../shared/types.js" */

const MORE = 200; // rows that are added at a time
const EVERY = 4; // beats: twice a second

/** @type {{filter: keyof typeof FILTERS, order: import("./requestrows.js").Order, most: number, held: boolean}} */
const state = { filter: "all", order: { column: "worst", down: true }, most: MORE, held: false };
/** Those that have a row, from top to bottom. @type {Request[]} */
let shown = [];
/** @type {Map<Request, {tr: HTMLTableRowElement, texts: HTMLElement[], key: string}>} */
const rows = new Map();
let box = null, body = null, caption = null, nothing = null, more = null, unfolded = null, panel = null;
/** The row that Tab goes to. @type {Request | null} */
let current = null;

/** Make the table, hidden, in a panel. Returns its box, and the contents of the panel's head while it is shown. */
export function requestTable(element) {
  build();
  panel = new Panel(element, { name: "requests", box, every: EVERY, draw });
  const filters = segmented("requests shown", Object.keys(FILTERS), (word) => {
    state.filter = /** @type {keyof typeof FILTERS} */ (word);
    again();
  });
  const save = () => saveFile("roseplay-requests.csv", asCsv(all()), "text/csv;charset=utf-8");
  const title = "These requests as a table for a spreadsheet";
  const csv = makeButton("CSV", { className: "rp-back", title, onclick: save });
  listen();
  return { box, filters, csv, again };
}

// ---- making ---------------------------------------------------------------------------------------------
function build() {
  caption = make("caption", "rp-said");
  body = make("tbody");
  nothing = make("p", { className: "rp-nothing", hidden: true });
  more = makeButton("", { className: "rp-back rp-more", hidden: true, onclick: () => again(state.most += MORE) });
  const head = make("thead", "", make("tr", "", ...COLUMNS.map(heading)));
  const table = make("table", "", caption, head, body);
  const values = { className: "rp-table rp-requests", role: "region", "aria-label": "Requests", hidden: true };
  box = make("div", values, table, more, nothing);
  unfolded = make("tr", "rp-unfolded", make("td", { colSpan: COLUMNS.length }));
  showOrder();
}

/** @param {import("./requestrows.js").Column} column */
function heading({ name, title, meaning, words }) {
  const onclick = () => {
    const { order } = state;
    state.order = { column: name, down: order.column === name ? !order.down : !words };
    showOrder();
    again();
  };
  return make("th", { scope: "col", className: `rp-of-${name}` }, makeButton(title, { title: meaning, onclick }));
}

function showOrder() {
  const { column, down } = state.order, heads = box.querySelectorAll("thead th");
  const direction = down ? "descending" : "ascending";
  heads.forEach((th, i) => (th.ariaSort = COLUMNS[i].name === column ? direction : null));
}

// ---- which, and in which order --------------------------------------------------------------------------
/* Whether a request ran in the time shown, while the time charts are zoomed. */
function inView({ submitted, finished }) {
  const { zoom } = view;
  return !zoom || (time.x(submitted) <= zoom.x1 && (finished === null || time.x(finished) >= zoom.x0));
}

const all = () => listed(state.filter, state.order, inView);

/* While held, rows keep their order, and new ones follow. */
function ordered() {
  const list = all();
  if (!state.held || !shown.length) return list;
  const had = new Set(shown);
  return [...shown, ...list.filter((known) => !had.has(known)).reverse()];
}

/** Apply another order or filter at once, even if the pointer is in the table. */
function again(_ = 0) {
  shown = [];
  panel.soon();
}

// ---- writing --------------------------------------------------------------------------------------------
function draw() {
  state.held = box.matches(":hover, :focus-within") || popover.name === "cache";
  const list = ordered(), before = shown;
  shown = list.slice(0, Math.max(state.most, state.held ? before.length : 0));
  const kept = new Set(shown);
  for (const known of rows.keys()) if (!kept.has(known)) drop(known);
  for (const known of shown) fill(known);
  if (before.length !== shown.length || before.some((known, i) => known !== shown[i])) place();
  mark();
  sayHow(list);
}

function drop(known) {
  rows.get(known).tr.remove();
  rows.delete(known);
}

function fill(known) {
  if (!rows.has(known)) rows.set(known, makeRow(known));
  const row = rows.get(known), texts = COLUMNS.map((column) => column.show(known)), key = texts.join("|");
  if (row.key === key) return;
  row.key = key;
  texts.forEach((text, i) => i !== 1 && write(row.texts[i], text));
  row.tr.dataset.state = texts[2];
  showParts(known, row.tr);
}

/* Put the rows into their order, moving only those in the wrong place: moving a focused row would lose the focus. */
function place() {
  shown.forEach((known, i) => {
    const { tr } = rows.get(known);
    if (body.rows[i] !== tr) body.insertBefore(tr, body.rows[i] || null);
  });
}

/* Which row is selected, which is pointed at elsewhere, and which one Tab goes to. */
function mark() {
  const { selected, rid } = pointing;
  if (!current || !rows.has(current)) current = shown[0] || null;
  let chosen = null;
  for (const [known, { tr }] of rows) {
    tr.tabIndex = known === current ? 0 : -1;
    tr.classList.toggle("rp-on", known.rid === rid);
    if (selected?.rid === known.rid) chosen = known;
    tr.ariaCurrent = chosen === known ? "true" : null;
  }
  box.classList.toggle("rp-pointed", rid !== null && shown.some((known) => known.rid === rid));
  unfold(chosen);
}

/* On a phone, show the columns that do not fit below the row that was tapped. */
function unfold(known) {
  if (!known || !phone.matches) return unfolded.remove();
  const { tr, key } = rows.get(known), moved = tr.nextSibling !== unfolded;
  if (moved || unfolded.dataset.of !== key) {
    unfolded.dataset.of = key;
    unfolded.firstChild.replaceChildren(unfoldedFacts(known));
  }
  if (!moved) return;
  tr.after(unfolded);
  scrollTo(unfolded);
}

function sayHow(list) {
  const { column, down } = state.order, { title, words } = COLUMNS.find(({ name }) => name === column);
  const reversed = down === Boolean(words) ? ", reversed" : "";
  const zoomed = view.zoom ? ` · in ${((view.zoom.x1 - view.zoom.x0) / 1000).toFixed(2)} s` : "";
  write(panel.subtitle, `sorted by ${title}${reversed}${zoomed}${state.held ? " · order held" : ""}`);
  const live = list.filter((known) => !isOver(known)).length;
  write(caption, `${format.many(list.length, "request")}, ${format.count(live)} of them unfinished. Times in ms.`);
  const left = list.length - shown.length;
  more.hidden = left <= 0;
  write(more, `${format.count(Math.min(left, MORE))} more of ${format.count(list.length)}`);
  nothing.hidden = list.length > 0;
  if (!nothing.hidden) {
    write(nothing, state.filter === "all" ? nothingIn(view.window(time.now()), "No requests yet.") : "None now.");
  }
}

// ---- pointer and keys -----------------------------------------------------------------------------------
const knownOf = (target) => {
  const tr = target instanceof Element ? target.closest("tbody tr[data-rid]") : null;
  return tr && shown.find((known) => rows.get(known).tr === tr);
};

function listen() {
  for (const event of ["pointerleave", "focusout"]) box.addEventListener(event, panel.soon);
  body.addEventListener("click", ({ target }) => {
    if (!(target instanceof Element && target.closest("button"))) choose(knownOf(target));
  });
  body.addEventListener("pointerover", ({ target }) => pointAt(knownOf(target)));
  body.addEventListener("focusin", ({ target }) => {
    const known = knownOf(target);
    if (known) current = known;
    pointAt(known);
    mark();
  });
  for (const event of ["pointerleave", "focusout"]) body.addEventListener(event, () => pointAt(null));
  onKeys(body, onKey);
  on("hover", () => box.hidden || mark());
  on("select", () => box.hidden || reveal());
  on("reset", () => {
    for (const known of rows.keys()) drop(known);
    again();
  });
}

const pointAt = (known) => emit("hover", known ? known.rid : null);

function choose(known) {
  if (!known) return;
  const { selected } = pointing, again = selected && selected.rid === known.rid && selected.step === null;
  current = known;
  rows.get(known).tr.focus({ preventScroll: true });
  emit("select", again ? null : { rid: known.rid, step: null });
}

const MOVES = { ArrowUp: -1, ArrowDown: 1, Home: -Infinity, End: Infinity };

function onKey({ key, target }) {
  const known = knownOf(target);
  if (!known) return false;
  const { tr, texts } = rows.get(known);
  if (target !== tr && key !== "ArrowLeft") return false;
  if (key === "ArrowLeft") tr.focus();
  else if (key === "ArrowRight") texts[CACHED].focus();
  else if (key === "Enter" || key === " ") choose(known);
  else if (key in MOVES) {
    const at = shown.indexOf(known) + MOVES[key];
    rows.get(shown[Math.max(0, Math.min(shown.length - 1, at))]).tr.focus();
  } else return false;
  return true;
}

/* Scroll what was selected elsewhere into view. */
function reveal() {
  mark();
  const tr = body.querySelector("tr[aria-current]");
  if (tr && !state.held) scrollTo(tr);
}

const scrollTo = (tr) => scrollWithin(box, tr, box.querySelector("thead").offsetHeight);
