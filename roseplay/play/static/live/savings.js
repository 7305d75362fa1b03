/* The rail's summary of prompt tokens: of the newest burst, or of all prompts since the server started (`in_all` of its
 * figures), with the details in a popover. The server computes the sums; the browser remembers which of the two is
 * shown. */
import { write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { press } from "../shared/legend.js";
import { factList, factRow, popover } from "../shared/popover.js";
import { slowedFirst } from "../shared/past.js";
import { keep, stored } from "../shared/storage.js";
import { store } from "../shared/store.js";

const KEY = "roseplay-savings";

/** @type {HTMLElement | null} */
let box = null;
/** The newest figures of each, where there are any. @type {Record<string, () => Record<string, any> | null>} */
const LATEST = { burst: () => store.burst, all: () => store.stats?.in_all ?? null };
const shown = {};

function choose(which) {
  press(box.querySelectorAll(".rp-tg button"), ({ dataset }) => dataset.of === which);
  for (const name in LATEST) box.querySelector(`.rp-of-${name}`).hidden = name !== which;
  keep(KEY, which);
}

const { count, ms, many } = format;

function showBurst(burst) {
  const done = burst && burst.done < burst.size ? ` · ${burst.done} done` : "";
  showPart("burst", burst, burst ? `${burst.size} × ${burst.label}${done}` : "none yet");
  const seed = document.querySelector("#rp-traffic-head h3 span");
  if (burst && seed) write(seed, `last seed ${burst.seed}`);
}

function showAll(all) {
  showPart("all", all, all && all.requests ? many(all.requests, "request") : "none yet");
}

/* `figures` are null where there are none. */
function showPart(name, figures, title) {
  const part = box.querySelector(`.rp-of-${name}`), bars = part.querySelectorAll(".rp-bar i");
  const { prompt_tokens: prompt, computed, saved } = figures || {};
  write(part.querySelector("h3 span"), title);
  write(part.querySelector("button b"), prompt ? share(saved, prompt) : "–");
  [computed, saved].forEach((tokens = 0, i) => (bars[i].style.width = `${(100 * tokens) / (prompt || 1)}%`));
}

/* "256 of 350 tok", "2 560 of 3 500", in the room that the row has. */
function share(saved, prompt) {
  const short = (n) => (prompt < 1e6 ? count(n) : `${(n / 1e6).toFixed(2)} M`);
  return `${short(saved)} of ${short(prompt)}${prompt < 1e3 ? " tok" : ""}`;
}

/* All figures of one of them. */
function contents(name) {
  const figures = LATEST[name]() || {},
    { prompt_tokens: prompt, computed, cached, shared, blocks_saved: blocks } = figures;
  const slow = slowedFirst(store.bursts.get(figures.burst)?.requests ?? []);
  const ttft = figures.ttft_p50 == null ? "–" : `${ms(figures.ttft_p50)} / ${ms(figures.ttft_p95)} ms${slow}`;
  return [factList(
    factRow("prompt tokens", count(prompt)),
    factRow("computed", count(computed)),
    factRow("from the prefix cache", count(cached)),
    factRow("from the same step", count(shared)),
    factRow("blocks saved", count(blocks)),
    name === "burst" ? factRow("TTFT p50 / p95", ttft) : null,
  )];
}

function explain(name, opener) {
  const fill = () => contents(name), news = () => JSON.stringify(LATEST[name]());
  popover.toggle({ name: KEY, title: "Saved by sharing", opener, side: "right", fill, news });
}

function show() {
  const burst = LATEST.burst(), all = LATEST.all();
  if (box && burst !== shown.burst) showBurst(burst);
  if (box && all !== shown.all) showAll(all);
  if (box) Object.assign(shown, { burst, all });
}
for (const event of ["reset", "frame"]) on(event, show);

/** @param {HTMLElement} element the section of the rail */
export function mount(element) {
  box = element;
  for (const button of box.querySelectorAll(".rp-tg button")) button.onclick = () => choose(button.dataset.of);
  for (const name in LATEST) {
    /** @type {HTMLElement} */
    const row = box.querySelector(`.rp-of-${name} > button`);
    row.onclick = () => explain(name, row);
  }
  choose(stored(KEY) in LATEST ? stored(KEY) : "burst");
  show();
}
