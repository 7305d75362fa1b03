/* What a lane says about its newest answer: its state, and its tokens. */
import { format } from "../shared/format.js";
import { store } from "../shared/store.js";
import { lineText } from "../shared/waits.js";

/** @import { LaneNews } from "../shared/types.js" */

const ENDS = { length: "its limit, New tokens", stop: "the model", abort: "a stop" };

/** @param {LaneNews} news */
export function stateText(news) {
  const { count } = format, tokens = format.many(news.tokens, "token");
  switch (news.state) {
    case undefined:
      return "";
    case "queued":
      return ["queued", lineText(news.rid)].filter(Boolean).join(" · ");
    case "waiting":
    case "error":
      return news.state;
    case "prefill":
      return `prefill ${count(news.computed)}/${count(news.target)}` +
        (news.cached ? ` · ${count(news.cached)} cached` : "");
    case "done":
      return news.reason === "length" ? `cut at ${tokens}` : `done · ${tokens}`;
    default:
      return `${news.state} · ${tokens}`;
  }
}

/** @param {LaneNews} news */
export function tokensText({ prompt, cached, tokens, reason }) {
  const ended = reason ? `, ended by ${ENDS[reason] ?? reason}` : "";
  const { count } = format, reuse = store.absent.cached_tokens ? "" : ` (${count(cached)} of them cached or shared)`;
  return `${count(prompt)} prompt tokens${reuse}, ${count(tokens)} generated${ended}`;
}
