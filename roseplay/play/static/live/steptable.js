/* What the step timeline shows, a line a request in view. */
import { format } from "../shared/format.js";
import { median } from "../shared/numbers.js";
import { requestName, store } from "../shared/store.js";
import { AsTable } from "../shared/table.js";

const COLUMNS = [
  ["request", "Its number, and the lane that it answers in."],
  ["state"],
  ["prompt", "Prompt tokens."],
  ["cached", "Prompt tokens found in the prefix cache."],
  ["shared", "Prompt tokens that another request of the same step computed."],
  ["tokens", "Tokens generated so far."],
  ["TTFT", "Time to first token, ms."],
  ["ITL p50", "Median inter-token latency, ms."],
  ["preempted", "Times that it lost its blocks to another."],
];
const ENDS = { stop: "done", length: "done", abort: "stopped", error: "failed" };

function stateOf(known) {
  if (known.finished !== null || known.reason) return ENDS[known.reason] || known.reason || "done";
  if (known.preempted.length > known.resumed.length) return "preempted";
  if (known.scheduled === null && !known.computed) return "queued";
  return known.computed < known.target ? "prompt" : "decode";
}

/* Tokens and gaps of some requests, of the tokens that are kept: Map rid -> {count, gaps}. */
function answers(wanted) {
  const { tokens } = store, found = new Map(wanted.map(({ rid }) => [rid, { count: 0, gaps: [] }]));
  for (let i = tokens.first; i < tokens.end; i++) {
    const slot = i & tokens.mask, own = found.get(tokens.request_id[slot]);
    if (!own) continue;
    own.count++;
    if (tokens.itl_ms[slot] >= 0) own.gaps.push(tokens.itl_ms[slot]);
  }
  return found;
}

/**
 * @param {import("./rows.js").Rows} rows
 * @param {() => import("../shared/types.js").Request[]} visible the requests in view
 */
export const stepTable = (rows, visible) =>
  new AsTable({ name: "Steps as a table", columns: COLUMNS, read: () => read(rows, visible()) });

function read(rows, known) {
  known.sort((a, b) => rows.of(a) - rows.of(b) || a.submitted - b.submitted);
  const found = answers(known), unfinished = known.filter((one) => one.finished === null).length;
  return {
    caption: `${format.many(known.length, "request")} in view, ${format.count(unfinished)} unfinished. Times in ms.`,
    rows: known.map((one) => line(one, found.get(one.rid))),
  };
}

function line(known, { count: tokens, gaps }) {
  const { count, ms } = format;
  return [
    requestName(known.rid),
    stateOf(known),
    count(known.prompt),
    count(known.cached),
    count(known.shared),
    count(Math.max(tokens, known.tokens)),
    ms(known.ttft),
    ms(gaps.length ? median(gaps) : null),
    count(known.preempted.length),
  ];
}
