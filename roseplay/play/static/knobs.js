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
    if (!ask) return;
    if (busy()) timer = setTimeout(sync, AGAIN_MS);
    else ask();
  }

  /** `trigger()` asks the server for what the controls should show. */
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

  function place(name, value) {
    const stops = window.RoseStops[name];
    if (!stops) {
      const range = document.querySelector(`#${name} input[type=range]`);
      return range ? (value - range.min) / (range.max - range.min) : 0;
    }
    let best = stops.length - 1;
    if (value !== null) {
      stops.forEach((stop, i) => {
        if (stop !== null && (stops[best] === null || Math.abs(Math.log(stop / value)) < Math.abs(Math.log(stops[best] / value)))) best = i;
      });
    }
    return best / (stops.length - 1);
  }

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
        track.style.setProperty("--rp-was", place(TRACKS[knob], before));
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
