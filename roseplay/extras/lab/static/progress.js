/* The strip above the Lab's charts: the run, its progress, and the server's refusals. */
import { make, write } from "page/shared/dom.js";
import { on } from "page/shared/events.js";
import { format } from "page/shared/format.js";
import { renameDocument } from "./document.js";
import { allRows, plainValue, settingLabel } from "./points/document.js";
import { ARMS, lab, meaning, measuring, shownResult, simulates } from "./state.js";

const { count } = format;
let title = null, name = null, about = null, left = null, error = null, bars = null;

export function mount(element) {
  const parts = ["h3", ".rp-lab-name", ".rp-sub", ".rp-lab-left", ".rp-lab-error", ".rp-lab-bars"];
  [title, name, about, left, error, bars] = parts.map((part) => element.querySelector(part));
  title.title = meaning("lab-run");
  name.addEventListener("change", () => renameDocument(shownResult(), name.value.trim()));
  name.addEventListener("keydown", (event) => event.key === "Enter" && name.blur());
  on("lab", (what) => (what === "message" ? message() : show()));
  show();
}

/* [{label, arm, repeat, done, total, seconds, state}] of the job, otherwise of the result, otherwise of the plan. */
function runs() {
  const job = measuring() && lab.job, compares = lab.mode === "compare";
  if (job) return !compares ? byValue(job) : job.progress.length ? job.progress : plannedBars();
  if (!compares) return measuredBars();
  if (!lab.document) return plannedBars();
  const done = new Map();
  return lab.document.order.map((arm) => {
    const repeat = (done.get(arm) || 0) + 1;
    done.set(arm, repeat);
    const run = lab.document.runs.find((one) => one.arm === arm && one.repeat === repeat);
    const { requests, seconds } = run || { requests: [], seconds: 0 };
    return { label: arm, arm, repeat, done: requests.length, total: requests.length, seconds, state: "done" };
  });
}

const BAR = { label: "", arm: "", repeat: 0, done: 0, total: 0, seconds: 0, state: "done" };

/* A bar for each value of a sweep, or try of a search. */
function measuredBars() {
  const document = lab.points[lab.mode];
  const done = allRows(document).map(({ arm, row }) => {
    return { ...BAR, arm, label: `${arm} ${plainValue(document.setting, row.value)}`.trim() };
  });
  return done.length ? done : [{ ...BAR, state: "waiting" }];
}

/* The runs of each value as one bar. */
function byValue({ progress, setting }) {
  const values = new Map(), two = progress.some((run) => run.arm === "B");
  for (const run of progress) values.set(run.label, [...(values.get(run.label) || []), run]);
  return [...values.values()].map((runs) => {
    const [{ arm, value, case: variant }] = runs, ended = runs.filter((run) => run.state === "done").length;
    const under = runs.find((run) => run.state === "running");
    const state = ended === runs.length ? "done" : under ? "running" : "waiting";
    const part = under && under.total ? under.done / under.total : 0;
    const label = [two ? arm : "", plainValue(setting, value), variant].filter(Boolean).join(" ");
    return { ...BAR, arm, label, done: ended + part, total: runs.length, state };
  });
}

function plannedBars() {
  const number = simulates() ? 1 : lab.numbers.repeats, order = [];
  const repeats = Math.max(1, Math.min(20, Math.round(number) || 1));
  for (let repeat = 1; repeat <= repeats; repeat++) {
    for (const arm of repeat % 2 ? ARMS : [...ARMS].reverse()) {
      order.push({ ...BAR, label: arm, arm, repeat, state: "waiting" });
    }
  }
  return order;
}

function bar({ label: name, arm, repeat, done, total, seconds, state }, wide) {
  const fill = make("i", { style: `width: ${state === "done" ? 100 : total ? (100 * done) / total : 0}%` });
  const underWay = state === "running" ? `${count(done)}/${count(total)}` : "";
  const figure = state === "done" ? `${seconds.toFixed(seconds < 10 ? 2 : 1)} s` : underWay;
  const label = repeat ? `${name} · ${repeat}` : name;
  const words = [make("span", "", label), make("em", "", wide ? figure : "")];
  const box = make("div", `rp-lab-bar ${arm === "B" ? "b" : ""}`, make("u", "rp-meter", fill), ...words);
  box.title = `${name}${repeat ? `, repeat ${repeat}` : ""}: ${state}${figure ? `, ${figure}` : ""}`;
  return box;
}

function comparedWords(all) {
  const { num_requests: requests, repeats } = lab.numbers, order = all.map(({ arm }) => arm);
  const shown = order.length > 12 ? `${order.slice(0, 12).join(" ")} …` : order.join(" ");
  const each = simulates() ? "each simulated once" : `${repeats === 1 ? "1 repeat" : `${repeats} repeats`} each`;
  return [requests ? `${count(requests)} requests` : "", each, `order ${shown}`].filter(Boolean).join(", ");
}

/* The request of a sweep or a search, in a few words. */
function askedWords(kind) {
  const { from, to, points, setting, both } = lab.asked[kind],
    { repeats } = lab.numbers,
    arms = both ? " of A and B" : "";
  const range = `${from ?? "?"} to ${to ?? "?"}${setting === "rate_per_s" ? " requests/s" : ""}`;
  const once = simulates(), rounds = once ? "each simulated once" : `in ${format.many(repeats, "round")}`;
  if (kind === "sweep" && to === null) {
    return `doubled from ${from ?? "?"} requests/s until the limits are exceeded${arms && " in A and B"}, ${rounds}`;
  }
  if (kind === "sweep") return `${points ?? "?"} values${arms}, ${range}, ${rounds}`;
  return `${range}, ${once ? rounds : `at least ${format.many(repeats, "repeat")} a try`}`;
}

function titleOf(title) {
  if (lab.mode === "compare") return title;
  const varied = settingLabel(lab.asked[lab.mode].setting).toLowerCase();
  return `${title}: ${lab.mode === "sweep" ? "a sweep of" : "a search for"} the ${varied}`;
}

function state() {
  if (lab.job?.state === "starting") return "starting";
  if (!measuring()) return shownResult() && lab.edited ? "settings changed since" : "";
  const { progress, left_s: left } = lab.job, done = progress.filter((run) => run.state === "done").length;
  const rest = typeof left === "number" ? ` · about ${Math.max(1, Math.ceil(left))} s left` : "";
  if (lab.mode === "compare") return `run ${Math.min(done + 1, progress.length)} of ${progress.length}${rest}`;
  if (!lab.job.rounds) return format.many(done, "run"); // each may be the last
  const under = progress.find((run) => run.state !== "done");
  const round = under ? `round ${under.repeat} of ${progress[progress.length - 1].repeat} · ` : "";
  return `${round}${format.many(done, "run")} of ${progress.length}${rest}`;
}

function show() {
  if (!lab.scenario) return message();
  const all = runs(), of = (measuring() && lab.job && lab.job.title) || lab.scenario.title;
  write(title, titleOf(of));
  write(about, lab.mode === "compare" ? comparedWords(all) : askedWords(lab.mode));
  write(left, state());
  bars.style.gridTemplateColumns = `repeat(${all.length}, minmax(0, 1fr))`;
  bars.classList.toggle("rp-many", all.length > 10);
  bars.replaceChildren(...all.map((run) => bar(run, all.length <= 10 && lab.mode === "compare")));
  const result = shownResult();
  name.hidden = !result;
  if (result && document.activeElement !== name) name.value = result.name || "";
  message();
}

function message() {
  error.hidden = !lab.message;
  write(error, lab.message);
}
