/* The table of a sweep's values, or of a search's tries. */
import { make, makeButton, write } from "page/shared/dom.js";
import { format } from "page/shared/format.js";
import { given } from "page/shared/given.js";
import { rowHead } from "page/shared/table.js";
import { exportTable } from "../files.js";
import { fillPanel, lab, meaning, shownPoints, shownResult, showOn } from "../state.js";
import { allRows, answerRow, plainValue, rowsOf, settingLabel, summaryOf } from "./document.js";

/* Columns: [figure, words, unit]. */
const SWEEP = [
  ["output_tokens_per_s", "tok/s"],
  ["ttft_p95_ms", "TTFT p95", "ms"],
  ["itl_p99_ms", "ITL p99", "ms"],
  ["goodput_req_s", "goodput"],
  ["kept_pct", "kept"],
];
/* Shown where requests were preempted. */
const PREEMPTIONS = [["preemptions", "preempted"], ["recomputed_tokens", "recomputed"], ["moved_mb", "moved MB"]];
const FIND = [["itl_p99_ms", "ITL p99", "ms"], ["ttft_p95_ms", "TTFT p95", "ms"]];
const LIMITED = { ttft_p95_ms: "TTFT", itl_p99_ms: "ITL" }; // shown with their ranges
let table = null, subtitle = null, csv = null;

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
  // A value's rows are below each other; sorting keeps A before B.
  const rows = find ? allRows(document) : allRows(document).sort((one, other) => one.row.value - other.row.value);
  const named = find ? FIND : [...SWEEP, ...PREEMPTIONS.filter(([name]) => name in figures)];
  const columns = named.map((column) => columnOf(rows, column));
  table.dataset.kind = document.kind;
  table.replaceChildren(head(document, columns, find), make("tbody", "", ...rows.map(line)));

  function line({ arm, row }, i) {
    const answer = row === answerRow(document), { knee, points } = summaryOf(document, arm || "A");
    const marked = find ? answer : knee !== null && row === points[knee];
    const cells = columns.map((column) => cell(column, i)), value = plainValue(document.setting, row.value);
    const mark = arm ? [" ", make("i", `rp-ab ${arm === "B" ? "b" : ""}`.trim(), arm)] : [];
    const first = rowHead(settingLabel(document.setting), find ? `${i + 1}` : value, ...mark);
    const more = find ? [make("td", "", value), ...cells, make("td", "", verdict(row, answer))] : cells;
    const look = `${marked ? "rp-marked" : ""} ${row.kept ? "" : "rp-broken"}`;
    return make("tr", { className: look.trim(), "data-value": String(row.value), "data-arm": arm }, first, ...more);
  }
}

/* A column's name, words and unit, and in each row the median and its range. */
function columnOf(rows, column) {
  const [name, words, of = ""] = column;
  const spreads = rows.map(({ row }) => row.figures[name]);
  const { unit, values } = format.inUnit(of, spreads.flatMap(({ median, range }) => [median, ...range]));
  return { name, words, unit, cells: spreads.map((_, i) => values.slice(3 * i, 3 * i + 3)) };
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
  const units = { rate_per_s: "requests/s", prompt_tokens: "prompt" };
  const varied = units[setting] || given.settings.knobs[setting].short || settingLabel(setting).toLowerCase();
  const plain = (words) => make("th", { scope: "col" }, words);
  const cells = columns.map(({ name, words, unit }) => {
    const look = { scope: "col", className: name in LIMITED ? "rp-ranged" : "" };
    return make("th", look, words, make("small", "", unit && ` ${unit}`));
  });
  const ends = find ? [[plain("try"), plain(varied)], [plain("verdict")]] : [[plain(varied)], []];
  return make("thead", "", make("tr", "", ...ends[0], ...cells, ...ends[1]));
}

function cell({ name, cells }, i) {
  const [median, ...range] = cells[i];
  const words = name === "kept_pct" && median !== null ? format.percent(median) : format.figure(median);
  const values = { title: meaning(name), "data-figure": name };
  return make("td", values, words, name in LIMITED ? make("small", "rp-range", format.range(range)) : "");
}

function verdict(row, answer) {
  if (row.kept) return answer ? "the answer" : "keeps both";
  return `${Object.keys(row.misses).map((name) => LIMITED[name]).join(" and ")} too long`;
}
