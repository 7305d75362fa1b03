/* Keeps the rail's controls and the engine's knobs together, when a knob is turned somewhere else too: in another tab, by a
 * program. The user's hand goes first: nothing moves under it. */
"use strict";
(function (Rose) {
  const HAND_MS = 700, AGAIN_MS = 150;
  const SWITCHES = ["prefix_cache", "same_step_sharing", "chunked_prefill", "batched_append", "cuda_graphs"];
  const TRACKS = { prefill_max_tokens: "budget", prefill_max_batch_size: "prefill-requests", max_batch_size: "max-batch" };
  let ask = null, timer = 0, handAt = 0, holding = false;

  const rail = () => document.getElementById("rp-rail");
  const inRail = (event) => event.target instanceof Element && Boolean(event.target.closest("#rp-rail"));

  document.addEventListener("pointerdown", (event) => { holding = inRail(event); }, true);
  for (const end of ["pointerup", "pointercancel"]) {
    document.addEventListener(end, () => {
      if (holding) handAt = performance.now();
      holding = false;
    }, true);
  }
  document.addEventListener("input", (event) => { if (inRail(event)) handAt = performance.now(); }, true);
  document.addEventListener("focusin", (event) => { event.target.dataset && delete event.target.dataset.typed; }, true);
  document.addEventListener("input", (event) => { if (event.target.dataset) event.target.dataset.typed = "1"; }, true);

  function busy() {
    const at = document.activeElement;
    const typing = at && at.closest && at.closest("#rp-rail") && /^(text|number)$/.test(at.type) && at.dataset.typed;
    return holding || typing || performance.now() - handAt < HAND_MS;
  }

  function sync() {
    clearTimeout(timer);
    if (!ask || !Object.keys(Rose.store.knobs).length) return; // called again when there is one and the other
    if (busy() || !document.querySelector("#slow-factor input")) timer = setTimeout(sync, AGAIN_MS);
    else {
      ask();
      show();
    }
  }

  /** `trigger()` has Gradio move the controls to where `Rose.controls()` says. */
  Rose.syncs = function (trigger) {
    ask = trigger;
    sync();
    show();
  };

  // ---- sliders of places ------------------------------------------------------------------------------------
  /** The text of place `i` of a slider; screen readers hear it instead of the place's number. */
  Rose.slid = function (name, i) {
    const text = Rose.format.limit(window.RoseStops[name][i]);
    const range = document.querySelector(`#${name} input[type=range]`);
    if (range) range.setAttribute("aria-valuetext", text === "∞" ? "unlimited" : text);
    return text;
  };

  /* The place nearest to a value, as Stops.place() in Python finds it. */
  function place(name, value) {
    const stops = window.RoseStops[name];
    if (value === null) return stops.length - 1;
    const far = (stop) => (stop === null ? Infinity : Math.abs(Math.log(stop / value)));
    return stops.reduce((best, stop, i) => (far(stop) < far(stops[best]) ? i : best), 0);
  }

  /* How far along its track a value stands, 0 to 1. */
  function along(name, value) {
    if (window.RoseStops[name]) return place(name, value) / (window.RoseStops[name].length - 1);
    const range = document.querySelector(`#${name} input[type=range]`);
    return range ? (value - range.min) / (range.max - range.min) : 0;
  }

  /** What the controls should show, in the order in which Controls.wire() names them. */
  Rose.controls = function () {
    const knobs = Rose.store.knobs, graphs = document.querySelector("#graphs input"), factor = document.querySelector("#slow-factor input");
    const stops = ["prefill_max_tokens", "prefill_max_batch_size"].flatMap((knob) => [place(TRACKS[knob], knobs[knob]), knobs[knob] === null ? "∞" : String(knobs[knob])]);
    const switches = SWITCHES.map((knob) => knobs[knob] && !(knob === "cuda_graphs" && graphs && graphs.disabled));
    return [...stops, knobs.max_batch_size, ...switches, knobs.slow_motion > 1, knobs.slow_motion > 1 ? `×${knobs.slow_motion}` : factor.value];
  };

  // ---- what follows from the knobs --------------------------------------------------------------------------
  function show() {
    const knobs = Rose.store.knobs;
    if (!rail() || !Object.keys(knobs).length) return;
    const graphs = document.querySelector("#graphs input");
    const on = SWITCHES.filter((name) => knobs[name] && !(name === "cuda_graphs" && graphs && graphs.disabled)).length;
    const hint = document.querySelector("#rp-opt-head h3 span");
    if (hint) Rose.write(hint, `${on} of ${SWITCHES.length} on`);
    const chip = document.querySelector(".rp-slow-chip");
    if (chip) {
      chip.hidden = !(knobs.slow_motion > 1);
      Rose.write(chip, `slow motion ×${knobs.slow_motion}`);
    }
    summary(knobs, on);
    for (const [knob, name] of Object.entries(TRACKS)) {
      const stops = window.RoseStops[name], range = document.querySelector(`#${name} input[type=range]`);
      if (stops && range) range.setAttribute("aria-valuetext", knobs[knob] === null ? "unlimited" : String(knobs[knob]));
    }
  }

  function summary(knobs, on) {
    const words = document.querySelector("#rp-knobs-button span");
    if (!words) return;
    const budget = Object.assign(document.createElement("em"), { textContent: Rose.format.limit(knobs.prefill_max_tokens) });
    words.replaceChildren("budget ", budget, ` · batch ${knobs.max_batch_size} · ${on} of ${SWITCHES.length} on`);
  }

  function ticks() {
    for (const mark of Rose.knobMarks()) {
      for (const [knob, [before]] of Object.entries(mark.changes)) {
        const track = TRACKS[knob] && document.getElementById(TRACKS[knob]);
        if (!track) continue;
        track.classList.add("rp-was");
        track.style.setProperty("--rp-was", along(TRACKS[knob], before));
      }
    }
  }

  Rose.on("reset", () => { show(); sync(); });
  Rose.on("frame", (delta) => {
    if (!(delta.frames || []).some((frame) => frame.knobs && frame.knobs.length)) return;
    show();
    ticks();
    sync();
  });
})(window.Rose);
