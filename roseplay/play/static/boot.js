/* Runs before Gradio draws anything: the theme, few controls or all, and two fixes of native controls. */
"use strict";
(function () {
  const KEY = "roseplay-theme", VIEW = "roseplay-view";
  const { body } = document, params = new URLSearchParams(location.search);
  let chosen = null, view = null, visited = false;
  try {
    chosen = localStorage.getItem(KEY);
    view = localStorage.getItem(VIEW);
    visited = localStorage.length > 0;
  } catch {
    // without storage, follow the system
  }
  if (!visited) keep(VIEW, "first"); // still a first visit after a reload

  // A first visitor sees few controls and one chart: "simple". The address and the command line can say which.
  const { content } = document.querySelector("meta[name=rose-view]");
  const known = view === "first" ? "" : view, usual = visited && view !== "first" ? "full" : "simple";
  const asked = ["simple", "full"].find((one) => one === params.get("view"));
  body.dataset.view = asked || known || content || usual;
  body.classList.add("rp-first"); // until something has streamed, see live/story.js
  document.addEventListener("click", (/** @type {any} */ { target }) => {
    if (!target.closest("#rp-view")) return;
    body.dataset.view = body.dataset.view === "full" ? "simple" : "full";
    keep(VIEW, body.dataset.view);
  });

  // Later, Gradio sets body.dark in the same way; a stored choice must take precedence.
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  body.classList.toggle("dark", (params.get("__theme") ?? system) === "dark");
  function apply() {
    if (chosen && body.classList.contains("dark") !== (chosen === "dark")) {
      body.classList.toggle("dark", chosen === "dark");
    }
  }
  apply();
  new MutationObserver(apply).observe(body, { attributes: true, attributeFilter: ["class"] });

  document.addEventListener("roseplay-theme", () => {
    chosen = body.classList.contains("dark") ? "light" : "dark";
    keep(KEY, chosen);
    apply();
  });

  function keep(key, value) {
    try {
      localStorage.setItem(key, value);
    } catch {
      // without storage, only for this visit
    }
  }

  // A number beyond a slider's range would reach the server before Gradio clamps it, and fail there.
  document.addEventListener("input", (/** @type {any} */ { target: box, isTrusted: byUser }) => {
    if (byUser && box.type === "number" && box.max !== "" && +box.value > +box.max) box.value = box.max;
  }, true);

  // Each radio of a gr.Radio has its own name; arrow keys work only with one name for the group.
  document.addEventListener("keydown", (/** @type {any} */ event) => {
    const group = /^Arrow/.test(event.key) && event.target.type === "radio" && event.target.closest("fieldset");
    if (group) group.querySelectorAll("input[type=radio]").forEach((radio) => (radio.name = group.id));
  }, true);
})();
