/* What a lane says about its newest answer: its state, and its tokens. */
import { format } from "../shared/format.js";
import { store } from "../shared/store.js";
import { lineText } from "../shared/waits.js";

/** @import { LaneNews } from "../shared/types.js" */

/** @param {LaneNews} news */
export function stateText(news) {
  // Prompt and answer; another server says only at the end how long the prompt was.
  const tokens = `${news.prompt ? `${format.count(news.prompt)}+` : ""}${format.count(news.tokens)} tok`;
  switch (news.state) {
    case undefined:
      return "";
    case "queued":
      return ["queued", lineText(news.rid)].filter(Boolean).join(" · ");
    case "waiting":
    case "error":
      return news.state;
    case "prefill":
      return `prefill ${news.computed}/${news.target}${news.cached ? ` · ${news.cached} cached` : ""}`;
    case "done":
      return `${news.reason === "length" ? "length" : "done"} · ${tokens}`;
    default:
      return `${news.state} · ${tokens}`;
  }
}

/** @param {LaneNews} news */
export function tokensText({ prompt, cached, tokens, reason }) {
  const ended = reason ? `, ended by ${reason}` : "";
  const found = store.absent.cached_tokens ? "" : ` (${cached} of them cached or shared)`;
  return `${prompt} prompt tokens${found}, ${tokens} generated${ended}`;
}
