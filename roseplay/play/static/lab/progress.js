/* The strip over the Lab's charts: what is run, how far it is, and what the server refuses. */
import { make, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { renameDocument } from "./document.js";
import { isStarting, running } from "./job.js";
import { pointBars, pointTitle, pointWords } from "./points/progress.js";
import { ARMS, lab, meaning, shownResult } from "./state.js";

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

/* [{arm, repeat, done, total, seconds, state}] of the job, else of the result, else of what would be run. */
function runs() {
  if (lab.mode !== "compare") return pointBars(running());
  if (running() && lab.job) return lab.job.progress.length ? lab.job.progress : planned();
  if (!lab.document) return planned();
  const done = new Map();
  return lab.document.order.map((arm) => {
    const repeat = (done.get(arm) || 0) + 1;
    done.set(arm, repeat);
    const run = lab.document.runs.find((one) => one.arm === arm && one.repeat === repeat);
    const { requests, seconds } = run || { requests: [], seconds: 0 };
    return { arm, repeat, done: requests.length, total: requests.length, seconds, state: "done" };
  });
}

function planned() {
  const repeats = Math.max(1, Math.min(20, Math.round(lab.numbers.repeats) || 1)), order = [];
  for (let repeat = 1; repeat <= repeats; repeat++) {
    for (const arm of repeat % 2 ? ARMS : [...ARMS].reverse()) {
      order.push({ arm, repeat, done: 0, total: 0, seconds: 0, state: "waiting" });
    }
  }
  return order;
}

function bar({ arm, repeat, done, total, seconds, state }, wide) {
  const fill = make("i");
  fill.style.width = `${state === "done" ? 100 : total ? (100 * done) / total : 0}%`;
  const underWay = state === "running" ? `${count(done)}/${count(total)}` : "";
  const figure = state === "done" ? `${seconds.toFixed(seconds < 10 ? 2 : 1)} s` : underWay;
  const label = repeat ? `${arm} · ${repeat}` : arm;
  const words = [make("span", "", label), make("em", "", wide ? figure : "")];
  const box = make("div", `rp-lab-bar ${arm === "B" ? "b" : ""}`, make("u", "", fill), ...words);
  box.title = `${arm}${repeat ? `, repeat ${repeat}` : ""}: ${state}${figure ? `, ${figure}` : ""}`;
  return box;
}

function words(all) {
  const { num_requests: requests, repeats } = lab.numbers, order = all.map(({ arm }) => arm);
  const shown = order.length > 12 ? `${order.slice(0, 12).join(" ")} …` : order.join(" ");
  const each = `${repeats === 1 ? "1 repeat" : `${repeats} repeats`} each`;
  return [requests ? `${count(requests)} requests` : "", each, `order ${shown}`].filter(Boolean).join(", ");
}

function state(all) {
  if (isStarting()) return "starting";
  if (running() && lab.mode !== "compare") return pointState();
  if (running()) {
    const at = all.findIndex((run) => run.state === "running"), soon = lab.job.left_s;
    const rest = typeof soon === "number" ? ` · about ${soon < 1 ? "1" : Math.ceil(soon)} s left` : "";
    const before = at < 0 ? all.filter((run) => run.state === "done").length : at;
    return `run ${before + 1} of ${all.length}${rest}`;
  }
  return shownResult() && lab.edited ? "settings changed since" : "";
}

function pointState() {
  const left = lab.job.left_s, all = lab.job.progress, done = all.filter((run) => run.state === "done").length;
  const rest = typeof left === "number" ? ` · about ${Math.max(1, Math.ceil(left))} s left` : "";
  const words = `${done} run${done === 1 ? "" : "s"}`;
  if (lab.mode !== "sweep") return words;
  const under = all.find((run) => run.state !== "done"), last = all[all.length - 1];
  const round = under ? `round ${under.repeat} of ${last.repeat} · ` : "";
  return `${round}${words} of ${all.length}${rest}`;
}

function show() {
  if (!lab.scenario) return message();
  const all = runs(), of = (running() && lab.job && lab.job.title) || lab.scenario.title;
  const points = lab.mode !== "compare";
  write(title, points ? pointTitle(of) : of);
  write(about, points ? pointWords() : words(all));
  write(left, state(all));
  bars.style.gridTemplateColumns = `repeat(${all.length}, minmax(0, 1fr))`;
  bars.classList.toggle("rp-many", all.length > 10);
  bars.replaceChildren(...all.map((run) => bar(run, all.length <= 10 && !points)));
  const result = shownResult();
  name.hidden = !result;
  if (result && document.activeElement !== name) name.value = result.name || "";
  message();
}

function message() {
  error.hidden = !lab.message;
  write(error, lab.message);
}
