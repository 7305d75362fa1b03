/* Prompt tokens that sharing saved, of the newest burst and of all requests since the server started (`in_all` of its
 * figures): a table in the popover of the header's figure. The server computes the sums. */
import { make, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { slowedFirst } from "../shared/past.js";
import { store } from "../shared/store.js";
import { rowHead, tableHead } from "../shared/table.js";

const ROWS = [
  ["prompt tokens", "prompt_tokens"],
  ["computed", "computed"],
  ["from the prefix cache", "cached"],
  ["from the same step", "shared"],
  ["blocks saved", "blocks_saved"],
];
const latest = () => [store.burst, store.stats?.in_all ?? null];
const { count, ms, many } = format;

/** What the table depends on. */
export const savingsNews = () => JSON.stringify(latest());

/** The table. */
export function savings() {
  const of = latest(), [burst, all] = of;
  const done = burst && burst.done < burst.size ? ` · ${burst.done} done` : "";
  const row = (name, ...cells) => make("tr", "", rowHead("", name), ...cells.map((text) => make("td", "", text)));
  const rows = ROWS.map(([name, key]) => row(name, ...of.map((figures) => count(figures?.[key]))));
  const slow = slowedFirst(store.bursts.get(burst?.burst)?.requests ?? []);
  const ttft = burst?.ttft_p50 == null ? "–" : `${ms(burst.ttft_p50)} / ${ms(burst.ttft_p95)} ms${slow}`;
  const which = row(
    "",
    burst ? `${burst.size} × ${burst.label}${done}` : "none yet",
    all?.requests ? many(all.requests, "request") : "none yet",
  );
  const body = make("tbody", "", which, ...rows, row("TTFT p50 / p95", ttft, ""));
  return make("table", "rp-savings", tableHead([""], ["last burst"], ["in all"]), body);
}

/* The rail says which prompts the newest burst had. */
on("frame", () => {
  const place = document.querySelector("#rp-traffic-head h3 span");
  if (place && store.burst) write(place, `last seed ${store.burst.seed}`);
});
