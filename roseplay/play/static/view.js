/* Rose.view and Rose.panel: what all live views share.
 *
 *   Rose.view    the stretch of time that the time charts show: the last 15 s of work, or what somebody zoomed into
 *                (then they stand still together until Esc, a double click, or "back to now")
 *   Rose.panel   keeps one view drawn: as often as it wants to, never while it cannot be seen, one view at a time so that
 *                the main thread is never taken for longer than one of them needs, and not at all when nothing has changed
 *   Rose.knobMarks  the changes of settings in a stretch of time, with the words that stand on their flags */
"use strict";
(function (Rose) {
  const SPAN_MS = 15000;
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

  // ---- the time shown ---------------------------------------------------------------------------------------
  const view = (Rose.view = { zoom: null, serial: 0 });

  /** {x0, x1, now, live} in ms of view time; `now` is what tick labels count from. */
  view.window = function (span = SPAN_MS) {
    if (view.zoom) return { ...view.zoom, live: false };
    const now = Rose.time.now();
    return { x0: now - span, x1: now, now, live: true };
  };

  view.set = function (x0, x1) {
    if (!(x1 > x0)) return;
    view.zoom = { x0, x1, now: view.zoom ? view.zoom.now : Rose.time.now() };
    changed();
  };

  view.clear = function () {
    if (view.zoom) {
      view.zoom = null;
      changed();
    }
    Rose.emit("unzoom");
  };

  function changed() {
    view.serial++;
    Rose.emit("zoom", view.zoom);
  }

  Rose.on("reset", view.clear);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    view.clear();
    Rose.emit("select", null);
  });

  // ---- who is pointed at ------------------------------------------------------------------------------------
  Rose.hovered = null; // rid
  Rose.on("hover", (rid) => {
    if (Rose.hovered === rid) return;
    Rose.hovered = rid;
    for (const panel of panels) if (panel.follows) panel.soon();
  });

  // ---- panels -----------------------------------------------------------------------------------------------
  const TICK_MS = 25;
  const SHARE = 6; // a view that takes long is drawn less often: at most a sixth of the time goes into it
  const DESCRIBE_MS = 5000; // what screen readers are told changes no more often than this
  const panels = (Rose.panels = []);

  /* spec: name, hz, follows (whether hovering a request changes it), draw(width, height), describe() -> text.
   * `box` is the element whose size the view fills. */
  Rose.panel = function (box, spec) {
    const panel = {
      name: spec.name, hz: spec.hz, follows: spec.follows, box, draws: 0, cost: 0, longest: 0, next: 0, described: 0, key: "", onScreen: true,
      /** Draw at the next opportunity, whatever has changed. */
      soon() {
        panel.key = "";
        panel.next = 0;
      },
    };
    panel.turn = function (now) {
      const width = box.clientWidth, height = box.clientHeight;
      if (!width || !height) return false;
      const key = `${Rose.store.version} ${Math.round(Rose.time.now())} ${view.serial} ${width} ${height}`;
      panel.next = now + 1000 / Math.min(panel.hz, reducedMotion.matches ? 2 : Infinity);
      if (key === panel.key) return false;
      if (spec.draw(width, height) === false) return false; // not now: somebody is dragging in it
      panel.key = key;
      panel.draws++;
      const took = performance.now() - now;
      panel.cost = panel.draws > 1 ? panel.cost + (took - panel.cost) * 0.2 : took;
      if (panel.draws > 3) panel.longest = Math.max(panel.longest, took);
      panel.next = Math.max(panel.next, now + panel.cost * SHARE);
      if (spec.describe && now - panel.described > DESCRIBE_MS) {
        panel.described = now;
        box.setAttribute("aria-label", spec.describe());
      }
      return true;
    };
    box.setAttribute("role", "img");
    new ResizeObserver(panel.soon).observe(box);
    new IntersectionObserver((seen) => {
      panel.onScreen = seen[seen.length - 1].isIntersecting;
    }).observe(box);
    panels.push(panel);
    return panel;
  };

  setInterval(() => {
    if (document.hidden) return;
    const now = performance.now();
    const due = panels.filter((panel) => panel.onScreen && panel.next <= now && panel.box.isConnected);
    due.sort((a, b) => a.next - b.next);
    for (const panel of due) if (panel.turn(now)) break;
  }, TICK_MS);

  const all = () => panels.forEach((panel) => panel.soon());
  for (const name of ["theme", "reset", "zoom", "select"]) Rose.on(name, all);
  if (document.fonts) document.fonts.ready.then(all);

  // ---- knob marks -------------------------------------------------------------------------------------------
  const WORDS = {
    prefill_max_tokens: "budget", max_batch_size: "max batch", prefill_max_batch_size: "prefill requests",
    step_max_tokens: "step tokens", chunked_prefill: "chunked prefill", prefix_cache: "prefix cache",
    same_step_sharing: "sharing", batched_append: "batched append", cuda_graphs: "CUDA graphs", slow_motion: "slow motion",
  };
  const ONE_HAND_MS = 1200; // changes of one knob closer than this are one drag of a slider

  const value = (v) => (v === null ? "∞" : v === true ? "on" : v === false ? "off" : String(v));

  /** "budget 512 → 256", for one change or several. */
  Rose.knobText = function (changes) {
    const parts = Object.entries(changes).map(([name, [before, after]]) => {
      const unit = name === "slow_motion" ? "x" : "";
      return `${WORDS[name] || name.replace(/_/g, " ")} ${unit}${value(before)} → ${unit}${value(after)}`;
    });
    return parts.length > 2 ? `${parts[0]} and ${parts.length - 1} more` : parts.join(", ");
  };

  /** Marks between two view times, oldest first: [{x: view ms, t, step, changes, text}]; a slider's drag is one mark. */
  Rose.knobMarks = function (x0 = -Infinity, x1 = Infinity) {
    const marks = [];
    for (const { t, step, changes } of Rose.store.marks) {
      const last = marks[marks.length - 1], names = Object.keys(changes).join();
      if (last && t - last.t < ONE_HAND_MS && names === Object.keys(last.changes).join()) {
        const merged = {};
        for (const name in changes) merged[name] = [last.changes[name][0], changes[name][1]];
        Object.assign(last, { t, step, changes: merged });
      } else marks.push({ t, step, changes });
    }
    for (const mark of marks) {
      mark.x = Rose.time.x(mark.t);
      mark.text = Rose.knobText(mark.changes);
    }
    return marks.filter((mark) => mark.x >= x0 && mark.x <= x1);
  };

  // ---- figures ----------------------------------------------------------------------------------------------
  /** The q-quantile of a sorted array, between neighbours by interpolation; NaN of an empty one. */
  Rose.quantile = function (sorted, q) {
    if (!sorted.length) return NaN;
    const at = (sorted.length - 1) * q, low = Math.floor(at), high = Math.min(low + 1, sorted.length - 1);
    return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
  };

  const NICE = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10];

  /** An axis from 0 that covers `most` with `parts` equal parts of a round size: {max, step}. */
  Rose.axis = function (most, parts) {
    const least = Math.max(most, 1e-6) / parts, power = 10 ** Math.floor(Math.log10(least));
    const step = power * NICE.find((n) => n * power >= least * 0.9999);
    return { max: step * parts, step };
  };

  Rose.ms = (v) => (v < 100 ? v.toFixed(1) : Math.round(v).toString());
})(window.Rose);
