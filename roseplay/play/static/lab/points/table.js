/* The table of a sweep's values, or of a search's tries. */
import { make, makeButton, write } from "../../shared/dom.js";
import { format } from "../../shared/format.js";
import { given } from "../../shared/given.js";
import { rowHead } from "../../shared/table.js";
import { exportTable } from "../files.js";
import { fillPanel, lab, meaning, shownPoints, shownResult, showOn } from "../state.js";
import { allRows, answerRow, armsOf, plainValue, rowsOf, settingLabel, summaryOf } from "./document.js";

const SWEEP = [
  ["output_tokens_per_s", "tok/s"],
  ["ttft_p95_ms", "TTFT p95"],
  ["itl_p99_ms", "ITL p99"],
  ["goodput_req_s", "goodput"],
  ["kept_pct", "kept"],
];
/* Shown where requests were preempted. */
const PREEMPTIONS = [["preemptions", "preempted"], ["recomputed_tokens", "recomputed"], ["moved_mb", "moved MB"]];
const FIND = [["itl_p99_ms", "ITL p99"], ["ttft_p95_ms", "TTFT p95"]];
const PROMISED = { ttft_p95_ms: "TTFT", itl_p99_ms: "ITL" }; // shown with their ranges
let table = null, subtitle = null, csv = null;

/** @param {HTMLElement} element */
export function mount(element) {
  csv = makeButton("save as CSV", { className: "rp-lab-swap rp-lab-csv", onclick: exportTable });
  table = make("table", "rp-lab-table rp-lab-pts");
  subtitle = fillPanel(element, table, csv);
  showOn(show, "points", "mode", "job", "asked", "library");
}

function show() {
  const document = shownPoints();
  csv.hidden = !document || document !== shownResult();
  write(subtitle, document ? runsText(document) : "");
  if (!document) return table.replaceChildren();
  const find = document.kind === "find", figures = rowsOf(document)[0]?.figures ?? {};
  const columns = find ? FIND : [...SWEEP, ...PREEMPTIONS.filter(([name]) => name in figures)];
  Object.assign(table.dataset, { kind: document.kind, arms: armsOf(document).join(""), figures: columns.length });
  // A value's rows are below each other; sorting keeps A before B.
  const rows = find ? allRows(document) : allRows(document).sort((one, other) => one.row.value - other.row.value);
  table.replaceChildren(head(document, columns, find), make("tbody", "", ...rows.map(line)));

  function line({ arm, row }, i) {
    const answer = row === answerRow(document), { knee, points } = summaryOf(document, arm || "A");
    const marked = find ? answer : knee !== null && row === points[knee];
    const cells = columns.map(([name]) => cell(row, name));
    const value = rowHead(
      settingLabel(document.setting),
      find ? `${i + 1}` : plainValue(document.setting, row.value),
      ...(arm ? [" ", make("i", `rp-ab ${arm === "B" ? "b" : ""}`.trim(), arm)] : []),
    );
    const more = find
      ? [make("td", "", plainValue(document.setting, row.value)), ...cells, make("td", "", verdict(row, answer))]
      : cells;
    const look = `${marked ? "rp-marked" : ""} ${row.kept ? "" : "rp-broken"}`;
    return make("tr", { className: look.trim(), "data-value": String(row.value), "data-arm": arm }, value, ...more);
  }
}

/* The number of runs per row, as text: rates that contradict others have more of them. */
function runsText(document) {
  if (document.arms.A.simulated && document.repeats === 1) return "each simulated once";
  if (lab.mode === "find") return `medians and ranges of at least ${format.many(document.repeats, "repeat")}`;
  const runs = allRows(document).map(({ row }) => row.runs);
  const least = Math.min(...runs), most = Math.max(...runs);
  return `${least === most ? "" : `${least} to `}${format.many(most, "run")} each`;
}

function head({ setting }, columns, find) {
  const units = { rate_per_s: "req/s", prompt_tokens: "prompt" };
  const varied = units[setting] || given.settings.knobs[setting].short || settingLabel(setting).toLowerCase();
  const first = find ? [["", "try"], ["", varied]] : [["", varied]];
  const all = [...first, ...columns, ...(find ? [["", "verdict"]] : [])];
  const ranged = (name) => (name in PROMISED ? "rp-ranged" : "");
  const cells = all.map(([name, words]) => make("th", { scope: "col", className: ranged(name) }, words));
  return make("thead", "", make("tr", "", ...cells));
}

function cell(row, name) {
  const { median, range } = row.figures[name];
  const words = `${format.figure(median)}${name === "kept_pct" && median !== null ? " %" : ""}`;
  const values = { title: meaning(name), "data-figure": name };
  return make("td", values, words, name in PROMISED ? make("small", "rp-range", format.range(range)) : "");
}

function verdict(row, answer) {
  if (row.kept) return answer ? "the answer" : "keeps both";
  return `${Object.keys(row.misses).map((name) => PROMISED[name]).join(" and ")} too long`;
}
