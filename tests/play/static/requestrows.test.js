import "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { asCsv, COLUMNS, listed } from "../../../roseplay/play/static/live/requestrows.js";
import { apply } from "../../../roseplay/play/static/shared/reduce.js";
import { store } from "../../../roseplay/play/static/shared/store.js";
import { startAnew, step, submitted, take } from "./traffic.js";

const texts = (rid) => Object.fromEntries(COLUMNS.map(({ name, show }) => [name, show(store.requests.get(rid))]));
const ended = (rid, more = {}) => [rid, "finished", 500, { reason: "length", ...more }];
const first = (rid) => [rid, "first", 120, { ttft_ms: 120 - rid, ttft_parts: [0, 50, 0.1, 69.9] }];
/** Tokens of a request, with a gap of these ms before each but the first. */
const tokens = (rid, ...gaps) =>
  gaps.map((gap, i) => [rid, 120 + gaps.slice(0, i + 1).reduce((a, b) => a + b), i ? gap : null, i]);
const order = (column, down, filter = "all") =>
  listed(/** @type {any} */ (filter), { column, down }, () => true).map(({ rid }) => rid);

/** Requests 1 to 3 are done, 4 and 5 decode, 6 has its first token, and 7 waits. */
function traffic() {
  startAnew();
  const lanes = { 1: { kind: "lane", lane: 1 }, 2: { kind: "lane", lane: 2 }, 7: { kind: "steady" } };
  const rids = [1, 2, 3, 4, 5, 6, 7], about = (rid) => lanes[rid] ?? { kind: "burst", burst: 1 };
  const worked = rids.slice(0, 6);
  take([{
    requests: [...rids.map((rid) => submitted(rid, rid, about(rid))), ...worked.map(first)],
    steps: [step(0, 10, 120, worked.map((rid) => [rid, 8, 0, 8, 8, 0, 0]))],
    tokens: worked.flatMap((rid) => tokens(rid, 0, ...(rid === 6 ? [] : rid < 4 ? [10, 10] : [20, 80]))),
  }, { requests: [ended(1, { tokens: 3, ttft_ms: 119 }), ended(2, { tokens: 3 }), ended(3, { reason: "abort" })] }]);
}

test("orders: none comes last in either direction, and of equal ones the newest first", () => {
  traffic();
  const cases = /** @type {[string, boolean, number[]][]} */ ([
    ["worst", true, [5, 4, 3, 2, 1, 7, 6]],
    ["worst", false, [3, 2, 1, 5, 4, 7, 6]],
    ["id", true, [7, 6, 5, 4, 3, 2, 1]],
    ["state", false, [6, 5, 4, 2, 1, 7, 3]], // decode, done, queued, stopped
  ]);
  for (const [column, down, rids] of cases) assert.deepEqual(order(column, down), rids, `${column} ${down}`);
});

test("filters", () => {
  traffic();
  const cases = { all: [1, 2, 3, 4, 5, 6, 7], live: [4, 5, 6, 7], waiting: [7], done: [1, 2, 3] };
  for (const [filter, rids] of Object.entries(cases)) assert.deepEqual(order("id", false, filter), rids, filter);
  take([{ requests: [ended(7, { reason: "abort", tokens: 0 })] }]);
  assert.deepEqual(order("id", false, "waiting"), []);
});

test("the texts of a row", () => {
  traffic();
  assert.deepEqual(texts(1), {
    ...{ id: "1", source: "lane 1", state: "done", prompt: "8", cached: "·", answer: "3", queue: "–", ttft: "119" },
    ...{ parts: "50 for blocks · 70 computing", tpot: "10.0", worst: "10", preempt: "·", finish: "length" },
  });
  assert.deepEqual([texts(6).state, texts(6).tpot, texts(6).worst, texts(6).finish], ["decode", "–", "–", ""]);
  assert.deepEqual([texts(7).source, texts(7).state, texts(7).ttft], ["steady", "queued", "–"]);
  assert.deepEqual([texts(3).state, texts(3).source], ["stopped", "burst 1"]);
});

test("figures of an answer under way outlast its tokens, and its state and preemptions follow", () => {
  const about = { kind: "burst", burst: 1, prompt_tokens: 8, submitted: 900, first: 950, last: 990, ttft_ms: 50 };
  const requests = [[1, { ...about, tokens: 40, itl_max: 333, preemptions: 3, scheduled: 900 }]];
  apply(/** @type {any} */ ({ boot_id: "old", next: 7, now: 1000, reset: true, frames: [], snapshot: { requests } }));
  assert.deepEqual([texts(1).answer, texts(1).worst, texts(1).preempt], ["40", "333", "3"]);
  take([{ steps: [step(99, 1000, 1390, [], [1])], tokens: [[1, 1390, 400, 99]] }], { boot: "old" });
  const { answer, worst, preempt, state } = texts(1);
  assert.deepEqual([answer, worst, preempt, state], ["41", "400", "4", "preempted"]);
});

test("CSV has what the table shows", () => {
  traffic();
  const rows = () => {
    const [head, ...lines] = asCsv(listed("done", { column: "id", down: true }, () => true)).trim().split("\r\n");
    return lines.map((line) => Object.fromEntries(line.split(",").map((value, i) => [head.split(",")[i], value])));
  };
  const columns = ["request", "kind", "lane", "state", "tpot_ms", "itl_max_ms", "cached_tokens", "reason"];
  assert.deepEqual(rows().map((row) => columns.map((name) => row[name])), [
    ["3", "burst", "", "stopped", "10", "10", "0", "abort"],
    ["2", "lane", "2", "done", "10", "10", "0", "length"],
    ["1", "lane", "1", "done", "10", "10", "0", "length"],
  ]);
  store.absent = { cached_tokens: "not reported" };
  assert.deepEqual(rows().map((row) => row.cached_tokens + row.shared_tokens), ["", "", ""]);
  store.absent = {};
});
