/* Rose.stepCells: the cells of the step timeline, a request's part in a step each: which one lies at a point, and going from one
 * to the next by keyboard. Left and right go through a row, up and down to the row above or below, Home and End to the first and
 * the last in view; Enter asks why its token took so long, Esc leaves.
 *
 *   {at(x, y), stepAt(x), outline()}; `state` (window, plot, x, y, high, shown) and `rows` are the timeline's own */
"use strict";
(function (Rose) {
  const SLACK_PX = 6, LEAST_PX = 3;

  Rose.stepCells = function (canvas, { state, rows, left, said, soon }) {
    const g = canvas.getContext("2d");
    let cursor = null; // {rid, step}

    // ---- at a point -------------------------------------------------------------------------------------------
    const ms = (px) => state.window.x0 + ((px - left) / state.plot) * (state.window.x1 - state.window.x0);

    /** What lies at a point of the canvas: {rid, step} with step null between steps; null where nobody is. */
    function at(px, py) {
      if (!state.window) return null;
      const t = ms(px), slack = ms(px + SLACK_PX) - t;
      let row = -1;
      for (let i = 0; i < state.shown; i++) if (Math.abs(state.y(i) - py) <= state.high(i) / 2) row = i;
      if (row < 0) return null;
      const lives = ({ submitted, finished }) => Rose.time.x(submitted) - slack <= t && (finished === null || Rose.time.x(finished) + slack >= t);
      const known = rows.visible.findLast((one) => rows.of(one) === row && lives(one)); // the newest: it follows the one before it
      if (!known) return null;
      const found = Rose.stepAt(t), own = found && entriesOf(found.slot).some((entry) => entry.rid === known.rid);
      return { rid: known.rid, step: own ? found.step : null };
    }

    function stepAt(px) {
      if (!state.window || px < left || px > left + state.plot) return null;
      const found = Rose.stepAt(ms(px));
      return found && found.step;
    }

    function entriesOf(slot) {
      const { steps, entries } = Rose.store, list = [];
      for (let k = 0, e = steps.entry[slot]; k < steps.entries[slot]; k++, e++) {
        const i = e & entries.mask;
        if (e >= entries.first) list.push({ rid: entries.rid[i], prompt: entries.prompt[i], decode: entries.decode[i] });
      }
      return list;
    }

    // ---- from cell to cell ------------------------------------------------------------------------------------
    const spanOf = (step) => Rose.stepSpan(Rose.store.stepRow(step) & Rose.store.steps.mask);
    const inView = ({ x0, x1 }) => x1 >= state.window.x0 && x0 <= state.window.x1;

    /* The first cell of a row, going from ring row `from` by `by`; only in view where `seen`. */
    function along(row, from, by, seen) {
      const { steps } = Rose.store;
      for (let i = from; i >= steps.first && i < steps.end; i += by) {
        const slot = i & steps.mask;
        if (seen && !inView(Rose.stepSpan(slot))) continue;
        const found = entriesOf(slot).find((entry) => rows.rowOf(entry.rid) === row);
        if (found) return { rid: found.rid, step: steps.step[slot] };
      }
      return null;
    }

    /* The cell of a row that is nearest in time to a step. */
    function nearest(row, step) {
      const here = Rose.store.stepRow(step), before = along(row, here, -1, true), after = along(row, here, 1, true);
      if (!before || !after) return before || after;
      return step - before.step <= after.step - step ? before : after;
    }

    function beside(by) {
      for (let row = rows.rowOf(cursor.rid) + by; row >= 0 && row < state.shown; row += by) {
        const found = nearest(row, cursor.step);
        if (found) return found;
      }
      return null;
    }

    /* Where one begins: the newest cell in view of the first row that has one. */
    function newest() {
      for (let row = 0; row < state.shown; row++) {
        const found = along(row, Rose.store.steps.end - 1, -1, true);
        if (found) return found;
      }
      return null;
    }

    const MOVES = {
      ArrowLeft: () => along(rows.rowOf(cursor.rid), Rose.store.stepRow(cursor.step) - 1, -1, false),
      ArrowRight: () => along(rows.rowOf(cursor.rid), Rose.store.stepRow(cursor.step) + 1, 1, false),
      ArrowUp: () => beside(-1),
      ArrowDown: () => beside(1),
      Home: () => along(rows.rowOf(cursor.rid), Rose.store.steps.first, 1, true),
      End: () => along(rows.rowOf(cursor.rid), Rose.store.steps.end - 1, -1, true),
    };
    const kept = () => cursor !== null && Rose.store.stepRow(cursor.step) >= 0 && rows.rowOf(cursor.rid) >= 0;

    function go(cell) {
      if (!cell) return;
      if (Rose.popover.name === "why") Rose.emit("select", null);
      cursor = cell;
      const span = spanOf(cell.step), { x0, x1 } = state.window;
      if (!inView(span)) Rose.view.set(span.x0 - (x1 - x0) / 2, span.x0 + (x1 - x0) / 2);
      Rose.emit("hover", cell.rid);
      Rose.emit("step", cell.step);
      Rose.write(said, words(cell));
      soon();
    }

    function open() {
      const { x0, x1 } = spanOf(cursor.step), rect = canvas.getBoundingClientRect(), row = rows.rowOf(cursor.rid);
      Rose.emit("select", { ...cursor, x: rect.left + state.x((x0 + x1) / 2), y: rect.top + state.y(row) });
    }

    function leave() {
      if (!cursor) return;
      cursor = null;
      Rose.write(said, "");
      Rose.emit("hover", null);
      Rose.emit("step", null);
    }

    canvas.addEventListener("keydown", (event) => {
      if (!state.window || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
      if (event.key === "Escape") return leave(); // the view goes back to now, too
      const enter = event.key === "Enter" || event.key === " ";
      if (!enter && !(event.key in MOVES)) return;
      event.preventDefault();
      event.stopPropagation();
      if (!kept()) go(newest());
      else if (enter) open();
      else go(MOVES[event.key]());
    });
    canvas.addEventListener("focus", soon);
    canvas.addEventListener("blur", () => {
      Rose.emit("hover", null);
      Rose.emit("step", null);
      soon();
    });
    Rose.on("reset", leave);

    // ---- what is said and drawn -------------------------------------------------------------------------------
    const many = (n, word) => `${Rose.format.count(n)} ${word}${n === 1 ? "" : "s"}`;

    function words({ rid, step }) {
      const known = Rose.store.requests.get(rid), lane = known && known.lane !== null ? `, lane ${known.lane}` : "";
      const entry = entriesOf(spanOf(step).slot).find((one) => one.rid === rid);
      const did = entry.prompt ? many(entry.prompt, "prompt token") : entry.decode ? many(entry.decode, "decode token") : "prompt found, nothing computed";
      const itl = gap(rid, step);
      const after = itl === null ? "" : Number.isNaN(itl) ? ", first token" : `, ITL ${Rose.format.ms(itl)} ms`;
      return `Request ${rid}${lane}, step ${Rose.format.count(step)}: ${did}${after}`;
    }

    /* The gap before the token that came of a cell; NaN for a first token, null where none came. */
    function gap(rid, step) {
      const { tokens } = Rose.store;
      for (let i = tokens.lowerBound(tokens.step, step); i < tokens.end && tokens.step[i & tokens.mask] === step; i++)
        if (tokens.rid[i & tokens.mask] === rid) return tokens.itl[i & tokens.mask];
      return null;
    }

    /** Around the cell that the keys have chosen, while they can. */
    function outline() {
      if (!kept() || (document.activeElement !== canvas && Rose.popover.name !== "why")) return;
      const row = rows.rowOf(cursor.rid), span = spanOf(cursor.step);
      if (row >= state.shown || !inView(span)) return;
      const x0 = state.x(span.x0), width = Math.max(LEAST_PX, state.x(span.x1) - x0), high = Math.max(LEAST_PX, state.high(row) - 1.5);
      g.strokeStyle = state.T.ink;
      g.lineWidth = 1.5;
      g.strokeRect(x0 - 0.75, state.y(row) - high / 2 - 0.75, width + 1.5, high + 1.5);
    }

    return { at, stepAt, outline };
  };
})(window.Rose);
