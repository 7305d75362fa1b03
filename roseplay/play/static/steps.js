/* Rose.steps: who was computed when. A row a request: prompt chunks tall, decode thin, dotted while it waits, a diamond where it was
 * preempted, a tick where it ended, two squares where it copied a block before writing; running and waiting on top. From Rose.store.steps, .entries and .requests; on a canvas.
 *
 * Wheel or + and − zoom, dragging or Shift with the arrow keys pans, Esc returns to now; all time charts go along. Pointing at a row
 * emits "hover", a click on a step of it "select"; stepcells.js does the same for the keyboard. */
"use strict";
(function (Rose) {
  const LEFT = 44, RIGHT = 12, BOTTOM = 18, TOP = 52, OVERVIEW = [15, 43];
  const MS_PER_PX = 8000 / 596, LEAST_SPAN_MS = 6000; // a wider panel shows more seconds
  const ROW = 13, LEAST_ROW = 4, CHUNK = 10, DECODE = 3, LANES_GAP = 8;
  const NOTCH_PX = 3; // steps wider than this stand apart
  const SHADES = 6; // of ink, for ITL

  Rose.steps = function (element) {
    const canvas = document.createElement("canvas"), said = document.createElement("span"), sharp = Rose.sharp;
    canvas.className = "rp-steps";
    canvas.tabIndex = 0;
    said.className = "rp-said";
    said.setAttribute("role", "status");
    element.querySelector(".rp-plot").append(canvas, said);
    const { g, begin, line, text, diamond } = Rose.pen(canvas);
    const rows = new Rose.Rows();
    const toggle = Rose.toggle("colour", ["request", "ITL"], (word) => {
      state.byItl = word === "ITL";
      panel.soon();
    });
    const state = { byItl: false, T: null, window: null, width: 0, height: 0, rowHeight: ROW, x: null, y: null };
    let summary = "No steps yet.";
    const table = Rose.stepTable(rows, inView);

    element.querySelector(".rp-rt").replaceChildren(...legend(), toggle, table.button);
    table.bind(element);
    const copyLegend = element.querySelector(".rp-copied");
    copyLegend.hidden = true;
    const panel = Rose.panel(canvas, { name: "steps", every: 1, follows: true, keys: true, draw, describe: () => `Step timeline. ${summary}` });
    Rose.on("reset", () => rows.clear());
    const cells = Rose.stepCells(canvas, { state, rows, said, left: LEFT, soon: panel.soon });
    Rose.steering(canvas, { window: () => state.window, left: LEFT, right: RIGHT, at: cells.at, stepAt: cells.stepAt });
    Rose.on("step", panel.soon);

    // ---- drawing --------------------------------------------------------------------------------------------
    function draw(width, height, now) {
      begin(width, height);
      const left = LEFT, plot = width - LEFT - RIGHT;
      const span = Math.max(LEAST_SPAN_MS, Math.round((plot * MS_PER_PX) / 1000) * 1000);
      const window = Rose.view.window(now, span);
      const x = (ms) => left + ((ms - window.x0) / (window.x1 - window.x0)) * plot;
      Object.assign(state, { T: Rose.tokens(), window, width, height, plot, x });
      rows.update(window);
      layRows();
      grid();
      column();
      g.save();
      g.beginPath();
      g.rect(left, 0, plot + 1, height);
      g.clip();
      Rose.overview(g, state, OVERVIEW, eachStep);
      waiting();
      const seen = work();
      marks();
      cells.outline();
      g.restore();
      labels();
      knobs();
      if (!rows.visible.length) note(window.live ? Rose.nothingYet() : "Nothing here. Esc returns to now.");
      sub(span);
      const unfinished = rows.visible.filter((known) => known.finished === null).length;
      summary = `${seen} steps in view, ${rows.visible.length} requests; ${unfinished} of them unfinished. Arrow keys go from step to step and row to row, Enter opens one.`;
    }

    /* Requests in the stretch of time that is shown. */
    function inView() {
      if (state.window) rows.update(state.window);
      return rows.visible.slice();
    }

    /* Where row i has its middle. Lanes first, then a line, then everybody else. */
    function layRows() {
      const below = TOP + ROW * rows.lanes + LANES_GAP, room = state.height - BOTTOM - below, others = Math.max(rows.count - rows.lanes, 1);
      const high = (state.rowHeight = Math.max(LEAST_ROW, Math.min(ROW, room / others))); // the lanes keep theirs
      state.shown = rows.lanes + Math.max(0, Math.min(rows.count - rows.lanes, Math.floor(room / high)));
      state.y = (row) => (row < rows.lanes ? TOP + ROW * (row + 0.5) : below + high * (row - rows.lanes + 0.5));
      state.high = (row) => (row < rows.lanes ? ROW : high);
    }

    function grid() {
      const { T, window, plot, height } = state, bottom = height - BOTTOM;
      const ticks = Rose.timeTicks(window, plot, 60);
      ticks.forEach((tick, i) => {
        const x = sharp(state.x(tick.x)), last = i === ticks.length - 1 && tick.x > window.x1 - 1, first = tick.x < window.x0 + 1;
        line(x, 0, x, bottom, T.grid);
        text(tick.text, x, bottom + 13, T.ink3, last ? "right" : first ? "left" : "center");
      });
      if (window.live) line(sharp(LEFT + plot), 0, sharp(LEFT + plot), bottom, T.line2);
      line(LEFT, OVERVIEW[1] + 0.5, LEFT + plot, OVERVIEW[1] + 0.5, T.line);
      const under = sharp(TOP + ROW * rows.lanes + LANES_GAP / 2);
      line(8, under, LEFT + plot, under, T.line);
    }

    /* The step that is pointed at, else that of the selected token, as a shaded column. */
    function column() {
      const { steps } = Rose.store, step = Rose.pointed ?? (Rose.selected && Rose.selected.step), row = step === null ? -1 : Rose.store.stepRow(step);
      if (row < 0) return;
      const span = Rose.stepSpan(row & steps.mask), x0 = state.x(span.x0), x1 = state.x(span.x1), right = x0 > state.width / 2;
      g.fillStyle = Rose.fade(state.T.ink, 0.1);
      g.fillRect(x0, 0, Math.max(1.5, x1 - x0), state.height - BOTTOM);
      text(`step ${Rose.format.count(step)}`, right ? x0 - 5 : x1 + 5, 10, state.T.ink, right ? "right" : "left", true);
    }

    /** Calls fn(slot) for each step that touches the window, oldest first. */
    function eachStep(fn) {
      const { steps } = Rose.store, { x0, x1 } = state.window;
      let first = steps.end;
      while (first > steps.first && Rose.time.x(steps.t1[(first - 1) & steps.mask]) >= x0) first--;
      for (let i = first; i < steps.end; i++) {
        if (Rose.time.x(steps.t0[i & steps.mask]) > x1) break;
        fn(i & steps.mask);
      }
    }

    const dim = (rid) => (Rose.hovered !== null && Rose.hovered !== rid ? 0.25 : 1);

    /* Dotted: from submit to its first step, and from a preemption to the step that takes it up again. */
    function waiting() {
      const { T } = state;
      for (const known of rows.visible) {
        if (!shown(known)) continue;
        g.globalAlpha = dim(known.rid);
        const until = known.scheduled ?? known.finished, y = sharp(state.y(rows.of(known)));
        dotted(known.submitted, until, y);
        known.preempted.forEach((t, i) => dotted(t, known.resumed[i] ?? known.finished, y));
      }
      g.globalAlpha = 1;

      function dotted(from, to, y) {
        const x0 = Math.max(LEFT, state.x(Rose.time.x(from))), x1 = Math.min(LEFT + state.plot, to === null ? Infinity : state.x(Rose.time.x(to)));
        if (from !== null && x1 - x0 > 2) line(x0, y, x1, y, T.ink3, [1, 3]);
      }
    }

    const shown = (known) => rows.of(known) < state.shown;

    /* Chunks and decodes. Neighbouring decode steps are drawn as one stretch where they are too narrow to be told apart. */
    function work() {
      const { steps, entries } = Rose.store, open = new Map(), pixel = (state.window.x1 - state.window.x0) / state.plot;
      const thin = Math.min(DECODE, state.rowHeight - 2);
      const shades = state.byItl ? inkShades() : null;
      let seen = 0;
      const flush = (rid, run) => {
        g.fillStyle = run.color;
        g.globalAlpha = dim(rid);
        g.fillRect(run.x0, run.y - thin / 2, Math.max(0.7, run.x1 - run.x0), thin);
      };
      eachStep((slot) => {
        seen++;
        const t0 = steps.t0[slot], t1 = steps.t1[slot], x0 = Math.max(LEFT, state.x(Rose.time.x(t0))), x1 = state.x(Rose.time.x(t1));
        const notch = (t1 - t0) / pixel > NOTCH_PX ? 0.7 : 0;
        const shade = shades && shades(t1 - t0);
        for (let k = 0, e = steps.entry[slot]; k < steps.entries[slot]; k++, e++) {
          if (e < entries.first) continue;
          const at = e & entries.mask, rid = entries.rid[at], row = rows.rowOf(rid);
          if (row < 0 || row >= state.shown) continue;
          const color = shade || rows.color(rid), run = open.get(rid);
          if (entries.prompt[at] > 0) chunk(rid, row, x0, x1, color, true);
          else if (entries.decode[at] === 0) chunk(rid, row, x0, x1, color, false); // all of its prompt was there already
          else {
            if (run && !notch && run.color === color && x0 - run.x1 < 1.2) run.x1 = x1;
            else {
              if (run) flush(rid, run);
              open.set(rid, { x0, x1: x1 - notch, y: state.y(row), color });
            }
          }
        }
      });
      for (const [rid, run] of open) flush(rid, run);
      g.globalAlpha = 1;
      return seen;
    }

    function chunk(rid, row, x0, x1, color, computed) {
      const high = Math.min(CHUNK, state.high(row) - 1.5), width = Math.max(1.4, x1 - x0 - 0.6), top = state.y(row) - high / 2;
      g.globalAlpha = dim(rid);
      if (computed) {
        g.fillStyle = color;
        g.fillRect(x0, top, width, high);
      } else {
        g.strokeStyle = color;
        g.lineWidth = 1;
        g.strokeRect(x0 + 0.5, top + 0.5, Math.max(0.5, width - 1), high - 1);
      }
    }

    /* A step's duration as a shade between the light and the dark ink. */
    function inkShades() {
      const { T } = state, took = [];
      const { steps } = Rose.store;
      eachStep((slot) => took.push(steps.t1[slot] - steps.t0[slot]));
      const sorted = Float32Array.from(took).sort(), low = Rose.quantile(sorted, 0.5), high = Math.max(Rose.quantile(sorted, 0.99), low * 2);
      const colors = Array.from({ length: SHADES }, (_, i) => Rose.mix(T.decode, T.ink, i / (SHADES - 1)));
      return (ms) => colors[Math.max(0, Math.min(SHADES - 1, Math.round(((ms - low) / (high - low)) * (SHADES - 1))))];
    }

    /* Preemptions and ends. */
    function marks() {
      const { T } = state;
      for (const known of rows.visible) {
        if (!shown(known)) continue;
        const y = state.y(rows.of(known));
        g.globalAlpha = dim(known.rid);
        if (known.finished !== null) {
          g.fillStyle = known.reason === "error" || known.reason === "abort" ? T.ink3 : rows.color(known.rid);
          g.fillRect(state.x(Rose.time.x(known.finished)), y - 3.5, 1.5, 7);
        }
        for (const t of known.preempted) diamond(state.x(Rose.time.x(t)), y, Math.min(6, state.high(rows.of(known)) / 2 + 1), T.surface, T.ink);
        for (const t of known.copied) copied(state.x(Rose.time.x(t)), y);
      }
      g.globalAlpha = 1;
      copyLegend.hidden = !rows.visible.some((known) => known.copied.some((t) => Rose.time.x(t) >= state.window.x0));
    }

    /* The mark of a copy-on-write: a square behind another. */
    function copied(x, y) {
      g.lineWidth = 1;
      for (const [dx, dy] of [[2, -4], [0, -2]]) {
        g.fillStyle = state.T.surface;
        g.fillRect(sharp(x) + dx - 0.5, sharp(y) + dy - 0.5, 6, 6);
        g.strokeStyle = state.T.ink;
        g.strokeRect(sharp(x) + dx, sharp(y) + dy, 5, 5);
      }
    }

    // ---- words ----------------------------------------------------------------------------------------------
    function labels() {
      const { T } = state, every = Math.ceil(10 / state.rowHeight);
      text("run", LEFT - 6, 28, T.ink3, "right");
      text("wait", LEFT - 6, 40, T.ink3, "right");
      for (let row = 0; row < state.shown; row++) {
        const y = Math.round(state.y(row));
        if (row < rows.lanes) badge(row, y);
        else if ((row - rows.lanes) % every === 0) text(String(row + 1), LEFT - 12, y + 3.5, T.ink3, "right");
      }
      if (state.shown < rows.count) text(`${rows.count - state.shown} more`, LEFT + state.plot, state.height - BOTTOM - 3, T.ink3, "right");
    }

    function badge(row, y) {
      const color = state.T.hues[row % 8], half = 6;
      g.fillStyle = color;
      g.beginPath();
      g.roundRect(LEFT - 24, y - half, 12, half * 2, 2);
      g.fill();
      g.font = '700 10px "RP Mono", monospace';
      g.textAlign = "center";
      g.fillStyle = Rose.textOn(color);
      g.fillText(String(row + 1), LEFT - 18, y + 3.5);
    }

    function knobs() {
      const { T, window } = state, found = Rose.knobMarks(window.x0, window.x1);
      found.forEach((mark, i) => {
        const x = sharp(state.x(mark.x)), next = found[i + 1];
        line(x, 0, x, state.height - BOTTOM, T.rose);
        const room = (next ? state.x(next.x) : state.width) - x, long = mark.text.length * 6.1 + 10;
        if (room > long) text(mark.text, x + 5, 10, T.rose, "left", true);
        else if (!next && x - LEFT > long) text(mark.text, x - 5, 10, T.rose, "right", true);
      });
      for (const cut of Rose.time.cuts) {
        const at = cut.from - cut.before;
        if (at > window.x0 && at < window.x1) line(sharp(state.x(at)), TOP - 4, sharp(state.x(at)), state.height - BOTTOM, T.line2, [2, 3]);
      }
    }

    function note(words) {
      g.font = '12px "RP Sans", sans-serif';
      g.textAlign = "center";
      g.fillStyle = state.T.ink3;
      g.fillText(words, LEFT + state.plot / 2, (TOP + state.height - BOTTOM) / 2);
    }

    const subtitle = element.querySelector(".rp-sub");
    function sub(span) {
      const { zoom } = Rose.view;
      const words = zoom ? `${((zoom.x1 - zoom.x0) / 1000).toFixed(2)} s · Esc returns to now` : `last ${span / 1000} s`;
      if (subtitle && subtitle.textContent !== words) subtitle.textContent = words;
    }

    function legend() {
      const { svg } = Rose, bar = (x, width, height) => ["rect", { x, width, height, fill: "var(--rp-ink2)" }];
      const path = (d, fill) => ["path", { d, fill, stroke: "var(--rp-ink)" }];
      return [
        [svg(9, 12, bar(0, 3, 12), bar(5, 3, 12)), "prompt chunk", ""],
        [svg(12, 4, bar(0, 12, 3)), "decode", ""],
        [svg(12, 12, path("M6 1l5 5l-5 5l-5 -5z", "var(--rp-surface)")), "preempted", "rp-roomy"],
        [svg(12, 4, ["line", { x2: 12, y1: 2, y2: 2, stroke: "var(--rp-ink3)", "stroke-dasharray": "1 2" }]), "queued", "rp-roomy"],
        [svg(9, 9, path("M2.5 2.5v-2h6v6h-2M.5 2.5h6v6h-6z", "none")), "copied", "rp-roomy rp-copied"],
      ].map((entry) => Rose.legend(...entry));
    }
  };
})(window.Rose);
