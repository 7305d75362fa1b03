/* Rose.traces: the tab Traces. What the current run holds and its downloads; a recording opened from a file, read in this browser
 * only; the demo that comes along. */
"use strict";
(function (Rose) {
  const AGAIN_MS = 2000;
  const FIGURES = ["seconds", "steps", "requests", "tokens", "bytes"];

  const size = (bytes) => (bytes < 1e6 ? `${Rose.format.count(bytes / 1000)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
  const length = (s) => (s < 60 ? `${s.toFixed(1)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`);
  const WORDS = { seconds: length, bytes: size };

  Rose.traces = function (element) {
    const part = (one) => element.querySelector(one);
    const said = part(".rp-open-said"), drop = part(".rp-drop-zone"), file = part("input[type=file]");
    for (const link of element.querySelectorAll("a[data-file]")) link.href = `/ui/export/${link.dataset.file}?tab=${encodeURIComponent(Rose.tab)}`;

    // ---- this run -------------------------------------------------------------------------------------------
    async function ask() {
      if (!element.offsetParent) return;
      try {
        const answer = await fetch("/ui/export", { cache: "no-store", signal: AbortSignal.timeout(AGAIN_MS * 2) });
        if (answer.ok) show(await answer.json());
      } catch {
        // the light in the header says that the server does not answer
      }
    }

    function show(run) {
      const any = run.steps + run.requests > 0;
      for (const name of FIGURES) {
        const cell = part(`td[data-of=${name}]`), value = (WORDS[name] || Rose.format.count)(run[name]);
        Rose.write(cell, any ? value : "–");
      }
      element.classList.toggle("rp-nothing", !any);
      for (const link of element.querySelectorAll("a[data-file]")) {
        if (any) link.removeAttribute("aria-disabled");
        else link.setAttribute("aria-disabled", "true");
      }
      Rose.write(part(".rp-to-file"), run.file ? `Also written to ${run.file}, with the texts of all.` : "");
    }
    element.addEventListener("click", (event) => {
      if (event.target.closest && event.target.closest("a[aria-disabled]")) event.preventDefault();
    });
    Rose.on("connection", (trouble) => {
      if (!trouble || trouble.kind !== "server") return ask();
      for (const link of element.querySelectorAll("a[data-file]")) link.setAttribute("aria-disabled", "true");
    });
    setInterval(ask, AGAIN_MS);
    new ResizeObserver(ask).observe(element); // from nothing to something when the tab is shown

    // ---- opening --------------------------------------------------------------------------------------------
    function opened(problem) {
      Rose.write(said, problem);
      said.classList.toggle("rp-bad", Boolean(problem));
      if (problem) return;
      document.getElementById("rp-live-button").click();
      document.querySelector("#rp-replay .rp-toggle").focus(); // Space plays and pauses
    }

    async function take(chosen) {
      if (!chosen) return;
      Rose.write(said, `Reading ${chosen.name} …`);
      said.classList.remove("rp-bad");
      let problem = "";
      try {
        Rose.replay.open(await chosen.text(), chosen.name);
      } catch (error) {
        problem = error.message;
      }
      opened(problem);
    }

    part(".rp-choose").onclick = () => file.click();
    file.onchange = () => {
      take(file.files[0]);
      file.value = "";
    };
    const demo = part(".rp-demo");
    if (demo) demo.onclick = async () => opened(await Rose.replay.load("/ui/demo.jsonl", "demo.jsonl"));
    for (const name of ["dragenter", "dragover"]) {
      drop.addEventListener(name, (event) => {
        event.preventDefault();
        drop.classList.add("rp-over");
      });
    }
    drop.addEventListener("dragleave", () => drop.classList.remove("rp-over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      drop.classList.remove("rp-over");
      take(event.dataTransfer.files[0]);
    });
    // A file dropped beside the zone would otherwise take the page's place.
    for (const name of ["dragover", "drop"]) document.addEventListener(name, (event) => event.preventDefault());
  };
})(window.Rose);
