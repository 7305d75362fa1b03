/* Rose.figures and Rose.lastBurst: the header's strip of figures and the rail's account of the newest burst. The server makes
 * the figures (but inter-token latency, which is taken where the chart takes it), at most four times a second; they are written into
 * cells of fixed width. */
"use strict";
(function (Rose) {
  const SPARK = 60; // figures in the small curve: about 15 s of them
  const ITL_MS = 250;
  const rates = [];
  let cells = null, burst = null, step = null, latest = null, latestBurst = null;

  function write(name, parts, unit) {
    const cell = cells[name];
    const key = parts.join("/") + unit;
    if (cell.key === key) return;
    cell.key = key;
    cell.box.replaceChildren();
    parts.forEach((part, i) => {
      if (i) cell.box.append(Object.assign(document.createElement("em"), { textContent: "/" }));
      cell.box.append(part);
    });
    if (unit && parts[0] !== "–") cell.box.append(Object.assign(document.createElement("small"), { textContent: unit }));
  }

  function show(s) {
    const { count, ms } = Rose.format;
    write("tps", [count(s.tok_s)], "");
    write("rw", [count(s.running), count(s.waiting)], "");
    write("ttft", [ms(s.ttft_p50), ms(s.ttft_p95)], "ms");
    const used = s.kv_total ? (100 * (s.kv_active + s.kv_shared)) / s.kv_total : null;
    write("kv", [used === null ? "–" : used > 0 && used < 1 ? "<1" : String(Math.round(used))], "%");
    cells.kv.bar.style.width = `${used || 0}%`;
    write("saved", [count(s.saved_tokens)], "tok");
    const foot = document.getElementById("rp-step");
    if (foot && s.step !== null) Rose.write(foot, `step ${count(s.step)}`);
    rates.push(s.tok_s || 0);
    if (rates.length > SPARK) rates.shift();
    spark();
  }

  /* As the chart has them: of all gaps in the last seconds of work. They go on changing for a moment after the last frame. */
  let itlOf = "";
  function itl() {
    const now = Rose.time.now(), key = `${Rose.store.version} ${Math.round(now)}`;
    if (!cells || document.hidden || key === itlOf) return;
    itlOf = key;
    const { sorted } = Rose.gaps(Rose.view.latest(now));
    write("itl", sorted.length ? [0.5, 0.99].map((q) => Rose.format.ms(Rose.quantile(sorted, q))) : ["–", "–"], "ms");
  }
  setInterval(itl, ITL_MS);

  function spark() {
    const canvas = cells.tps.spark, ratio = devicePixelRatio || 1, width = 52, height = 24;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const pen = canvas.getContext("2d"), top = Math.max(...rates, 1);
    if (rates.length < 2) return;
    pen.scale(ratio, ratio);
    pen.strokeStyle = Rose.tokens().ink3;
    pen.beginPath();
    rates.forEach((rate, i) => pen.lineTo(((i + SPARK - rates.length) / (SPARK - 1)) * (width - 2) + 1, height - 2 - (rate / top) * (height - 4)));
    pen.stroke();
  }

  function account(b) {
    const { count, ms } = Rose.format;
    const done = b.done < b.size ? ` · ${b.done} done` : "";
    Rose.write(burst.querySelector("h3 span"), `${b.size} × ${b.label}${done}`);
    const seed = document.querySelector("#rp-traffic-head h3 span");
    if (seed) Rose.write(seed, `last seed ${b.seed}`);
    const values = [count(b.prompt_tokens), count(b.computed), count(b.saved), count(b.blocks_saved), b.ttft_p50 == null ? "–" : `${ms(b.ttft_p50)} / ${ms(b.ttft_p95)}`];
    burst.querySelectorAll("td + td").forEach((cell, i) => Rose.write(cell, values[i]));
    const bars = burst.querySelectorAll(".rp-bar i"), whole = b.prompt_tokens || 1;
    bars[0].style.width = `${(100 * b.computed) / whole}%`;
    bars[1].style.width = `${(100 * b.saved) / whole}%`;
  }

  function forget() {
    Rose.write(burst.querySelector("h3 span"), "none yet");
    for (const cell of burst.querySelectorAll("td + td")) Rose.write(cell, "–");
    for (const bar of burst.querySelectorAll(".rp-bar i")) bar.style.width = "0";
  }

  /* Rates are of now: where nothing is heard any more there are none. The other figures stay, as what was last known. */
  const stopped = () => Boolean(Rose.connection.trouble && Rose.connection.trouble.stopped);

  Rose.on("connection", () => {
    if (!cells) return;
    if (!stopped()) return show(latest || NONE);
    write("tps", ["–"], "");
    write("rw", ["–", "–"], "");
  });

  const NONE = { tok_s: null, running: null, waiting: null, ttft_p50: null, ttft_p95: null, kv_total: 0, saved_tokens: null, step: null };

  Rose.on("reset", () => {
    rates.length = 0;
    latest = NONE;
    latestBurst = null;
    if (cells) show(NONE);
    if (burst) forget();
  });

  Rose.on("frame", (delta) => {
    const before = latest, beforeBurst = latestBurst;
    if (delta.snapshot) {
      latest = delta.snapshot.stats || latest;
      latestBurst = delta.snapshot.burst || latestBurst;
    }
    for (const frame of delta.frames || []) {
      latest = frame.stats || latest;
      latestBurst = frame.burst || latestBurst;
    }
    if (cells && latest && latest !== before && !stopped()) show(latest);
    if (burst && latestBurst && latestBurst !== beforeBurst) account(latestBurst);
  });

  /** The header's strip in `element`. */
  Rose.figures = function (element) {
    cells = {};
    for (const kpi of element.querySelectorAll(".rp-kpi")) {
      const name = kpi.classList[1];
      cells[name] = { box: kpi.querySelector("b"), spark: kpi.querySelector("canvas"), bar: kpi.querySelector("u i"), key: "" };
    }
    if (latest) show(latest);
    Rose.on("theme", spark);
  };

  /** The rail's section in `element`. */
  Rose.lastBurst = function (element) {
    burst = element;
    if (latestBurst) account(latestBurst);
  };
})(window.Rose);
