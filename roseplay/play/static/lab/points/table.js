/* The table of a sweep's values, or of a search's tries. */
import { make, makeButton, write } from "../../shared/dom.js";
import { on } from "../../shared/events.js";
import { format } from "../../shared/format.js";
import { given } from "../../shared/given.js";
import { exportTable } from "../files.js";
import { lab, meaning, shownPoints, shownResult } from "../state.js";
import { valueWords } from "./curve.js";
import { answerRow, rowsOf, settingLabel } from "./document.js";

const SWEEP = [
  ["output_tokens_per_s", "tok/s"],
  ["ttft_p95_ms", "TTFT p95"],
  ["itl_p99_ms", "ITL p99"],
  ["goodput_req_s", "goodput"],
  ["kept_pct", "kept"],
];
const FIND = [["itl_p99_ms", "ITL p99"], ["ttft_p95_ms", "TTFT p95"]];
const TITLES = { ttft_p95_ms: "TTFT", itl_p99_ms: "ITL" };
let table = null, subtitle = null, csv = null;

/** @param {HTMLElement} element */
export function mount(element) {
  const plot = element.querySelector(".rp-plot");
  subtitle = element.querySelector(".rp-sub");
  csv = makeButton("save as CSV", { className: "rp-lab-swap rp-lab-csv", onclick: exportTable });
  plot.classList.add("rp-lab-scroll");
  table = make("table", "rp-lab-table rp-lab-pts");
  plot.append(table, csv);
  on("lab", (what) => ["points", "mode", "job", "asked", "library"].includes(what) && show());
  show();
}

function show() {
  const document = shownPoints();
  csv.hidden = !document || document !== shownResult();
  write(subtitle, document ? runsText(document) : "");
  if (!document) return table.replaceChildren();
  const find = document.kind === "find", columns = find ? FIND : SWEEP;
  table.dataset.kind = document.kind;
  table.replaceChildren(head(document, columns, find), make("tbody", "", ...rowsOf(document).map(line)));

  function line(row, i) {
    const { summary } = document, answer = row === answerRow(document);
    const marked = find ? answer : i === summary.knee;
    const cells = columns.map(([name]) => cell(row, name));
    const value = make(
      "th",
      { scope: "row", title: settingLabel(document.setting) },
      find ? `${i + 1}` : plainValue(document, row),
    );
    const more = find
      ? [make("td", "", plainValue(document, row)), ...cells, make("td", "", verdict(row, answer))]
      : cells;
    const look = `${marked ? "rp-marked" : ""} ${row.kept ? "" : "rp-broken"}`;
    return make("tr", { className: look.trim(), "data-value": String(row.value) }, value, ...more);
  }
}

/* The number of runs per row, as text: rates that contradict others have more of them. */
function runsText(document) {
  if (document.arms.A.simulated && document.repeats === 1) return "each simulated once";
  if (lab.mode === "find") return `medians and ranges of at least ${format.many(document.repeats, "repeat")}`;
  const runs = rowsOf(document).map((row) => row.runs ?? document.repeats);
  const least = Math.min(...runs), most = Math.max(...runs);
  return `${least === most ? "" : `${least} to `}${format.many(most, "run")} each`;
}

const plainValue = ({ setting }, row) => valueWords(setting, row.value).replace(" req/s", "");

function head({ setting }, columns, find) {
  const varied = setting === "rate_per_s"
    ? "req/s"
    : given.settings.knobs[setting].short || settingLabel(setting).toLowerCase();
  const first = find ? ["try", varied] : [varied];
  const names = [...first, ...columns.map(([, words]) => words), ...(find ? ["verdict"] : [])];
  const ranged = (words) => (/^(TTFT|ITL) p/.test(words) ? "rp-ranged" : "");
  const cells = names.map((words) => make("th", { scope: "col", className: ranged(words) }, words));
  return make("thead", "", make("tr", "", ...cells));
}

function cell(row, name) {
  const { median, range } = row.figures[name];
  const ranged = name === "ttft_p95_ms" || name === "itl_p99_ms";
  const words = `${format.figure(median)}${name === "kept_pct" && median !== null ? " %" : ""}`;
  const values = { title: meaning(name), "data-figure": name };
  return make("td", values, words, ranged ? make("small", "rp-range", format.range(range)) : "");
}

function verdict(row, answer) {
  if (row.kept) return answer ? "the answer" : "keeps both";
  return `${Object.keys(row.misses).map((name) => TITLES[name]).join(" and ")} too long`;
}
