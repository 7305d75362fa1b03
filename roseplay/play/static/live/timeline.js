/* The step timeline as last drawn: which row each request has, and its geometry, for its drawing, its cells and the
 * pointer. The first rows belong to the lanes. Every other request takes the first free row when it arrives and keeps
 * it, so that rows do not jump while the user looks at them. */
import { store } from "../shared/store.js";
import { hueOf, palette } from "../shared/theme.js";
import { time } from "../shared/time.js";
import { ownsRequest } from "../lanes/lanes.js";

const LEAST_LANES = 4;
const APART_MS = 60; // between the end of one request and the next in its row

export class Rows {
  /** @param {(rid: number) => boolean} owns whether a request is of this tab */
  constructor(owns = ownsRequest) {
    this.owns = owns;
    this.clear();
  }

  clear() {
    this.rows = new Map(); // rid -> row
    this.last = []; // row -> the request that came into it last
    this.lanes = LEAST_LANES;
    this.visible = []; // requests in the window
    this.count = LEAST_LANES; // rows up to the last one in use
  }

  /** Take new requests, and find those in the window. */
  update({ x0, x1 }) {
    const { requests } = store;
    for (const rid of this.rows.keys()) if (!requests.has(rid)) this.rows.delete(rid);
    this.visible = [];
    this.count = this.lanes;
    this.hues = palette().hues;
    for (const known of requests.values()) {
      if (known.submitted === null) continue; // its steps have come before the word of who it is
      if (known.lane > this.lanes) this.widen(known.lane);
      if (time.x(known.submitted) > x1 || (known.finished !== null && time.x(known.finished) < x0)) continue;
      const late = known.lane !== null && this.rowOf(known.rid) >= this.lanes && this.owns(known.rid);
      const left = late ? this.rowOf(known.rid) : -1; // its lane is known only now
      if (late || !this.rows.has(known.rid)) this.rows.set(known.rid, this.find(known));
      if (left >= 0) this.close(left);
      this.visible.push(known);
      this.count = Math.max(this.count, this.rows.get(known.rid) + 1);
    }
  }

  /* Make room for more lanes: all other requests move down. */
  widen(lanes) {
    const by = lanes - this.lanes;
    for (const [rid, row] of this.rows) if (row >= this.lanes) this.rows.set(rid, row + by);
    this.last.splice(this.lanes, 0, ...Array(by).fill(undefined));
    this.lanes = lanes;
  }

  /* Move the rows after one that is empty up, as those of requests that came just after the one that has left it. */
  close(empty) {
    if ([...this.rows.values()].includes(empty)) return;
    for (const [rid, row] of this.rows) if (row > empty) this.rows.set(rid, row - 1);
    this.last.splice(empty, 1);
  }

  find(known) {
    const row = known.lane !== null ? known.lane - 1 : -1;
    // An answer in place of one that has not ended ends that, and follows it in its row.
    if (row >= 0 && this.owns(known.rid)) {
      this.displace(row);
      return this.take(row, known);
    }
    // Another tab may be using the lane of the same number.
    return this.take(row >= 0 && this.free(row, known) ? row : this.behind(known), known);
  }

  free(row, known) {
    const before = this.last[row];
    return !before || before === known || (before.finished !== null && before.finished + APART_MS < known.submitted);
  }

  /* The first free row after the lanes. */
  behind(known) {
    let row = this.lanes;
    while (!this.free(row, known)) row++;
    return row;
  }

  /* Another tab's request gives a lane's row back to this tab's. */
  displace(row) {
    const before = this.last[row];
    if (!before || before.finished !== null || this.owns(before.rid)) return;
    this.rows.set(before.rid, this.take(this.behind(before), before));
  }

  take(row, known) {
    this.last[row] = known;
    return row;
  }

  rowOf(rid) {
    return this.rows.get(rid) ?? -1;
  }

  of(known) {
    return this.rowOf(known.rid);
  }

  color(rid) {
    return this.hues[hueOf(rid)];
  }
}

export const LEFT = 44;
export const RIGHT = 12;

/** `byItl`: whether colours show latency instead of requests; `window` is null until it has been drawn, `plot` the
 * width of its plot, `shown` how many rows are, `rowHeight` that of those behind the lanes. `x` is the place of a view
 * time, `y` the middle of a row and `high` its height.
 * @typedef {{byItl: boolean, T: import("../shared/theme.js").Palette, width: number, height: number, plot: number,
 *   window: import("../shared/types.js").TimeWindow | null, shown: number, rowHeight: number,
 *   x: (ms: number) => number, y: (row: number) => number, high: (row: number) => number}} Timeline */

export const timeline = /** @type {Timeline} */ ({ byItl: false, window: null });

export const rows = new Rows();
