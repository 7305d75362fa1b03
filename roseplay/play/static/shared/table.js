/* A canvas's alternative for people who cannot see it or want to read it: a real table in place of the panel. It is
 * updated at most once a second, only while it is shown; rows beyond MOST are counted in the caption. */
import { make, makeButton, write } from "./dom.js";
import { on } from "./events.js";
import { format } from "./format.js";

/** The name of its region, [title, meaning] of each column, and what it holds.
 * @typedef {{name: string, columns: string[][], read: () => {caption: string, rows: (string | number)[][]}}}
 *   TableSpec */

const EVERY_MS = 1000, MOST = 100;

export class AsTable {
  /** @param {TableSpec} spec */
  constructor(spec) {
    this.spec = spec;
    const values = { title: "Show this as a table", "aria-label": "as table", "aria-pressed": false };
    this.switches = makeButton("table", { className: "rp-as-table", ...values });
    this.button = make("span", "rp-tg", this.switches);
    this.box = this.build();
    this.timer = /** @type {any} */ (0); // of setTimeout
    this.readAt = -Infinity;
  }

  /** Put it into a panel. @param {HTMLElement} element */
  bind(element) {
    const plot = element.querySelector(".rp-plot"), { box, switches } = this;
    plot.append(box);
    switches.onclick = () => {
      box.hidden = !box.hidden;
      switches.setAttribute("aria-pressed", String(!box.hidden));
      plot.classList.toggle("rp-tabled", !box.hidden);
      if (!box.hidden) this.fill();
    };
    for (const event of ["frame", "zoom"]) on(event, () => this.refresh());
  }

  build() {
    const { name, columns } = this.spec;
    const parts = [make("caption"), tableHead(...columns), make("tbody")];
    // It can have the focus, so that the keys scroll it.
    const values = { className: "rp-table", tabIndex: 0, role: "region", "aria-label": name, hidden: true };
    return make("div", values, make("table", "", ...parts));
  }

  fill() {
    const { caption, rows } = this.spec.read(), body = this.box.querySelector("tbody"), shown = rows.slice(0, MOST);
    const more = rows.length > MOST ? ` And ${format.count(rows.length - MOST)} more.` : "";
    write(this.box.querySelector("caption"), caption + more);
    while (body.rows.length > shown.length) body.lastElementChild.remove();
    while (body.rows.length < shown.length) body.append(this.row());
    shown.forEach((cells, i) => cells.forEach((cell, k) => write(body.rows[i].cells[k], String(cell))));
  }

  row() {
    const [[, meaning = ""], ...others] = this.spec.columns;
    return make("tr", "", rowHead(meaning), ...others.map(() => make("td")));
  }

  /* Update it a second after the last update, or now if that is past. */
  refresh() {
    if (this.box.hidden || this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = 0;
      if (this.box.hidden) return;
      this.readAt = performance.now();
      this.fill();
    }, Math.max(0, EVERY_MS - (performance.now() - this.readAt)));
  }
}

/** The head of a row, and what it means. @param {string} title @param {...(Node | string)} inside */
export const rowHead = (title, ...inside) => make("th", { scope: "row", title }, ...inside);

/** The head of a table, by its columns: their titles, and what they mean. @param {...any[]} columns */
export function tableHead(...columns) {
  const cells = columns.map(([words, title]) => make("th", { scope: "col", ...(title && { title }) }, words));
  return make("thead", "", make("tr", "", ...cells));
}

/** The head of a table with a column for A and one for B behind the first. */
export function abHead(first, ...more) {
  const cells = [first, make("i", "rp-ab", "A"), make("i", "rp-ab b", "B"), ...more];
  return tableHead(...cells.map((inside) => [inside]));
}
