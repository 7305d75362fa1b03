/* The rail's account of prompt tokens: of the newest burst, or of all prompts since the server started (`in_all` of its
 * figures). The server adds up; the browser remembers which of the two is shown. */
import { write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { keep, stored } from "../shared/storage.js";

const KEY = "roseplay-savings", WHICH = ["burst", "all"];

/** @type {HTMLElement | null} */
let box = null;
/** The newest figures of each. @type {{burst: Record<string, any> | null, all: Record<string, any> | null}} */
let latest = { burst: null, all: null };

function choose(which) {
  for (const button of box.querySelectorAll(".rp-tg button")) {
    button.setAttribute("aria-pressed", String(button.dataset.of === which));
  }
  for (const name of WHICH) box.querySelector(`.rp-of-${name}`).hidden = name !== which;
  keep(KEY, which);
}

const { count, ms, many } = format;

function showBurst(burst) {
  const done = burst && burst.done < burst.size ? ` · ${burst.done} done` : "";
  const ttft = burst && burst.ttft_p50 != null ? `${ms(burst.ttft_p50)} / ${ms(burst.ttft_p95)}` : "–";
  showPart("burst", burst, burst ? `${burst.size} × ${burst.label}${done}` : "none yet", ttft);
  const seed = document.querySelector("#rp-traffic-head h3 span");
  if (burst && seed) write(seed, `last seed ${burst.seed}`);
}

function showAll(all) {
  const split = all && all.saved ? `${count(all.cached)} / ${count(all.shared)}` : "–";
  showPart("all", all, all && all.requests ? many(all.requests, "request") : "none yet", split);
}

/* `figures` are null where there are none. */
function showPart(name, figures, title, last) {
  const part = box.querySelector(`.rp-of-${name}`), bars = part.querySelectorAll(".rp-bar i");
  const { prompt_tokens: prompt, computed, saved, blocks_saved: blocks } = figures || {};
  write(part.querySelector("h3 span"), title);
  const values = [count(prompt), count(computed), count(saved), count(blocks), last];
  part.querySelectorAll("td + td").forEach((cell, i) => write(cell, values[i]));
  [computed, saved].forEach((tokens = 0, i) => (bars[i].style.width = `${(100 * tokens) / (prompt || 1)}%`));
}

on("reset", () => {
  latest = { burst: null, all: null };
  if (!box) return;
  showBurst(null);
  showAll(null);
});

on("frame", ({ snapshot, frames }) => {
  const before = { ...latest };
  for (const { stats, burst } of [snapshot || {}, ...(frames || [])]) {
    latest.burst = burst || latest.burst;
    latest.all = (stats && stats.in_all) || latest.all;
  }
  if (box && latest.burst !== before.burst) showBurst(latest.burst);
  if (box && latest.all !== before.all) showAll(latest.all);
});

/** @param {HTMLElement} element the section of the rail */
export function mount(element) {
  box = element;
  for (const button of box.querySelectorAll(".rp-tg button")) button.onclick = () => choose(button.dataset.of);
  choose(WHICH.includes(stored(KEY)) ? stored(KEY) : "burst");
  showBurst(latest.burst);
  showAll(latest.all);
}
