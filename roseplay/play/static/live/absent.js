/* What another server reports of all its clients, and what cannot be shown because it does not report it: views of that
 * are hidden (by absent.css, using the attribute set here), and the panel lists them with the reasons. */
import { make } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { store } from "../shared/store.js";
import { served } from "./served.js";

/** What a capability is needed for, in the page's own words; see engine/capabilities.py. */
const NEEDED_FOR = {
  knobs: ["Scheduler", "Optimisations", "Show me"],
  clear_cache: ["Show me"],
  steps: ["Tokens per step", "Preemptions of a request"],
  blocks: ["KV blocks"],
  kv_usage: ["KV over time", "KV in use"],
  queue: ["Waiting requests"],
  prefix_hit_rate: ["Prefix hit rate"],
  cached_tokens: ["Cached tokens"],
  server_times: ["Queue times"],
};

/** @type {HTMLElement | null} */
let box = null;

/* A line for each reason, with everything that it explains. */
function lines() {
  const by = new Map(), named = new Set();
  for (const [name, views] of Object.entries(NEEDED_FOR)) {
    const reason = store.absent[name], fresh = views.filter((view) => !named.has(view));
    if (!reason || !fresh.length) continue;
    fresh.forEach((view) => named.add(view));
    by.set(reason, [...(by.get(reason) || []), ...fresh]);
  }
  const reasons = [...by].map(([reason, views]) => [views.join(", "), reason]);
  return [...served(), ...reasons].map(([name, words]) => make("li", "", make("b", "", name), make("span", "", words)));
}

function show() {
  document.body.dataset.absent = Object.keys(store.absent).join(" ");
  if (box) box.replaceChildren(...lines());
}

on("reset", show);
on("absent", show);
on("frame", ({ frames }) => (frames || []).some(({ loads }) => loads && loads.length) && show());

/** @param {HTMLElement} element a panel */
export function mount(element) {
  box = make("ul", "rp-absent");
  element.querySelector(".rp-plot").append(box);
  show();
}
