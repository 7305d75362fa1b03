/* Rose.sampling: the panel of sampling settings, which opens from the prompt bar over the steps. Its controls are Gradio's. */
"use strict";
(function (Rose) {
  const panel = () => document.getElementById("rp-sampling"), opener = () => document.getElementById("sampling");

  function open(yes) {
    if (!panel()) return;
    panel().classList.toggle("rp-shown", yes);
    opener().setAttribute("aria-expanded", String(yes));
    const first = (yes ? panel().querySelector("textarea") : opener());
    if (first) first.focus({ preventScroll: true });
  }

  Rose.sampling = {
    toggle: () => open(!panel().classList.contains("rp-shown")),

    /** `element` is the panel's head. */
    panel(element) {
      element.querySelector("button").onclick = () => open(false);
      panel().setAttribute("role", "dialog");
      panel().setAttribute("aria-label", "Sampling");
      panel().addEventListener("keydown", (event) => {
        if (event.key !== "Escape" || document.querySelector("#rp-sampling .options")) return; // an open list closes first
        event.stopPropagation();
        open(false);
      });
    },
  };
})(window.Rose);
