/* Rose.ledger: the rail's account of all prompts since the server started, and the switch between it and the newest burst's.
 * The server adds up (`in_all` of its figures); the browser remembers which of the two is shown. */
"use strict";
(function (Rose) {
  const KEY = "roseplay-savings", WHICH = ["burst", "all"];
  let box = null, latest = null;

  function remembered() {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // a browser that keeps nothing shows the burst
    }
  }

  function choose(which) {
    for (const button of box.querySelectorAll(".rp-tg button")) button.setAttribute("aria-pressed", button.dataset.of === which);
    for (const name of WHICH) box.querySelector(`.rp-of-${name}`).hidden = name !== which;
    try {
      localStorage.setItem(KEY, which);
    } catch {
      // then only for this visit
    }
  }

  function account() {
    const { count } = Rose.format, all = latest, part = box.querySelector(".rp-of-all");
    const split = all && all.saved ? `${count(all.cached)} / ${count(all.shared)}` : "–";
    const values = all ? [count(all.prompt_tokens), count(all.computed), count(all.saved), count(all.blocks_saved), split] : Array(5).fill("–");
    Rose.write(part.querySelector("h3 span"), !all || !all.requests ? "none yet" : `${count(all.requests)} request${all.requests === 1 ? "" : "s"}`);
    part.querySelectorAll("td + td").forEach((cell, i) => Rose.write(cell, values[i]));
    const bars = part.querySelectorAll(".rp-bar i"), whole = (all && all.prompt_tokens) || 1;
    bars[0].style.width = `${all ? (100 * all.computed) / whole : 0}%`;
    bars[1].style.width = `${all ? (100 * all.saved) / whole : 0}%`;
  }

  Rose.on("reset", () => {
    latest = null;
    if (box) account();
  });

  Rose.on("frame", ({ snapshot, frames }) => {
    const before = latest;
    for (const { stats } of [snapshot || {}, ...(frames || [])]) latest = (stats && stats.in_all) || latest;
    if (box && latest !== before) account();
  });

  /** The rail's section in `element`. */
  Rose.ledger = function (element) {
    box = element;
    for (const button of box.querySelectorAll(".rp-tg button")) button.onclick = () => choose(button.dataset.of);
    choose(WHICH.includes(remembered()) ? remembered() : "burst");
    account();
  };
})(window.Rose);
