/* Runs in the document's head, before Gradio draws anything: the stored theme, and two fixes of native controls. */
"use strict";
(function () {
  const KEY = "roseplay-theme", body = document.body;
  let chosen = null;
  try {
    chosen = localStorage.getItem(KEY);
  } catch {
    // without storage, follow the system
  }

  // While mounting, Gradio sets body.dark from ?__theme= or the system; a stored choice must take precedence.
  function apply() {
    if (chosen && body.classList.contains("dark") !== (chosen === "dark")) {
      body.classList.toggle("dark", chosen === "dark");
    }
  }
  apply();
  new MutationObserver(apply).observe(body, { attributes: true, attributeFilter: ["class"] });

  document.addEventListener("roseplay-theme", () => {
    chosen = body.classList.contains("dark") ? "light" : "dark";
    try {
      localStorage.setItem(KEY, chosen);
    } catch {
      // without storage, only for this visit
    }
    apply();
  });

  // A number beyond a slider's range would reach the server before Gradio clamps it, and fail there.
  document.addEventListener("input", (/** @type {any} */ { target: box }) => {
    if (box.type === "number" && box.max !== "" && +box.value > +box.max) box.value = box.max;
  }, true);

  // Each radio of a gr.Radio has its own name; arrow keys work only with one name for the group.
  document.addEventListener("keydown", (/** @type {any} */ event) => {
    const group = /^Arrow/.test(event.key) && event.target.type === "radio" && event.target.closest("fieldset");
    if (group) group.querySelectorAll("input[type=radio]").forEach((radio) => (radio.name = group.id));
  }, true);
})();
