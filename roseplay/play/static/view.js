/* Rose.view and Rose.panel: what all live views share.
 *
 *   Rose.view    the stretch of time that the time charts show: the last 15 s of work, or what somebody zoomed into
 *                (then they stand still together until Esc, a double click, or "back to now")
 *   Rose.panel   keeps one view drawn: on the common beat, never while it cannot be seen, one view at a time so that the main
 *                thread is never taken for longer than one of them needs, and not at all when nothing has changed
 *   Rose.knobMarks  the changes of settings in a stretch of time, with the words that stand on their flags */
"use strict";
(function (Rose) {
  const SPAN_MS = 15000;
  const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

  // ---- the time shown ---------------------------------------------------------------------------------------
  const view = (Rose.view = { zoom: null, serial: 0 });

  /** {x0, x1, now, live} in ms of view time; `now` is what tick labels count from. */
  view.window = function (now, span = SPAN_MS) {
    return view.zoom ? { ...view.zoom, live: false } : view.latest(now, span);
  };

  /** The same of the newest, whatever somebody has zoomed into. */
  view.latest = (now, span = SPAN_MS) => ({ x0: now - span, x1: now, now, live: true });

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
  Rose.pointed = null; // step
  Rose.on("hover", (rid) => {
    if (Rose.hovered === rid) return;
    Rose.hovered = rid;
    for (const panel of panels) if (panel.follows) panel.soon();
  });

  Rose.on("step", (step) => {
    Rose.pointed = step;
  });

  /** The step at a moment of view time, or null: {step, x0, x1, slot}. */
  Rose.stepAt = function (ms) {
    const { steps } = Rose.store;
    for (let i = steps.end - 1; i >= steps.first; i--) {
      const found = Rose.stepSpan(i & steps.mask);
      if (found.x0 <= ms) return ms <= found.x1 ? found : null;
    }
    return null;
  };

  /** Where a step's row (its slot in the ring) lies in view time. */
  Rose.stepSpan = function (slot) {
    const { steps } = Rose.store;
    return { step: steps.step[slot], x0: Rose.time.x(steps.t0[slot]), x1: Rose.time.x(steps.t1[slot]), slot };
  };

  // ---- panels -----------------------------------------------------------------------------------------------
  /* Views are drawn on a common beat and with the time of that beat, so that those which share an axis end at the same "now"
   * and a knob's line runs straight through all of them. In between the main thread is free: one view a tick. */
  const BEAT_MS = 125, TICK_MS = 20;
  const MOST_SHARE = 0.3; // of the main thread; a slow machine gets fewer beats, not a stuck page
  const DESCRIBE_MS = 5000; // what screen readers are told changes no more often than this
  const panels = (Rose.panels = []);
  const beat = { count: 0, at: 0, ms: BEAT_MS };

  /* spec: name, every (beats), follows (whether hovering a request changes it), keys (it has some of its own), draw(width, height, now), describe() -> text.
   * `box` is the element whose size the view fills. `now` is the view time of the beat that it is drawn for. */
  Rose.panel = function (box, spec) {
    const panel = {
      name: spec.name, every: spec.every, follows: spec.follows, box, onScreen: true,
      due: null, key: "", drawn: 0, told: -Infinity, // for what time, of what, and when it was drawn and told last
      draws: 0, cost: 0, longest: 0, // how often, and ms it takes
    };

    /** Draw at the next tick, whatever has changed. */
    panel.soon = () => {
      panel.key = "";
      panel.due = Rose.time.now();
    };

    panel.turn = function () {
      const width = box.clientWidth, height = box.clientHeight, now = panel.due;
      const key = `${Rose.store.version} ${Math.round(now)} ${view.serial} ${width} ${height}`;
      panel.due = null;
      if (!width || !height || key === panel.key) return false;
      const began = performance.now();
      if (spec.draw(width, height, now) === false) return false; // not now: somebody is dragging in it
      panel.key = key;
      panel.drawn = began;
      measure(performance.now() - began);
      if (spec.describe && began - panel.told > DESCRIBE_MS) {
        panel.told = began;
        box.setAttribute("aria-label", spec.describe());
      }
      return true;
    };

    function measure(took) {
      panel.draws++;
      if (panel.draws < 3) return; // the first ones set things up
      panel.cost = panel.cost ? panel.cost + (took - panel.cost) * 0.2 : took;
      panel.longest = Math.max(panel.longest, took);
    }

    box.setAttribute("role", spec.keys ? "application" : "img"); // an application is given the arrow keys
    new ResizeObserver(panel.soon).observe(box);
    new IntersectionObserver((seen) => {
      panel.onScreen = seen[seen.length - 1].isIntersecting;
      if (panel.onScreen) panel.soon();
    }).observe(box);
    panels.push(panel);
    return panel;
  };

  function nextBeat(time) {
    const unfinished = panels.some((panel) => panel.due !== null && panel.onScreen);
    if (time - beat.at < beat.ms || unfinished) return;
    beat.at = time;
    beat.count++;
    const now = Rose.time.now();
    const seen = panels.filter((panel) => panel.onScreen && panel.box.isConnected);
    for (const panel of seen) if (beat.count % (reducedMotion.matches ? Math.max(4, panel.every) : panel.every) === 0) panel.due = now;
    const share = seen.reduce((sum, panel) => sum + panel.cost / panel.every, 0) / BEAT_MS;
    beat.ms = BEAT_MS * Math.max(1, share / MOST_SHARE);
  }

  setInterval(() => {
    if (document.hidden) return;
    nextBeat(performance.now());
    const due = panels.filter((panel) => panel.due !== null && panel.onScreen).sort((a, b) => a.drawn - b.drawn);
    for (const panel of due) if (panel.turn()) break;
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
})(window.Rose);
