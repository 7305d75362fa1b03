/* A search: its question as a sentence with fields, its answer, and the button that applies the answer to the running
 * engine. */
import { make, makeButton, write } from "page/shared/dom.js";
import { call } from "page/shared/ask.js";
import { on } from "page/shared/events.js";
import { format } from "page/shared/format.js";
import { poll } from "page/shared/poll.js";
import { drawn, plain } from "page/shared/sentence.js";
import { store } from "page/shared/store.js";
import { setLimits } from "../document.js";
import { lab, meaning, measuring, shownPoints } from "../state.js";
import { settingChoice } from "./asked.js";
import { answerRow, findingsOf, settingLabel } from "./document.js";

const WHICH = { prefill_max_tokens: "largest prefill budget", max_batch_size: "largest batch" };
let question = null, answer = null, doubt = null, why = null, apply = null, done = null;
/** The change made by Apply, for undoing it. @type {{setting: string, before: any, id: string} | null} */
let applied = null;

export function mount(element) {
  question = make("p", "rp-lab-question");
  answer = make("p", "rp-lab-found");
  doubt = make("p", { className: "rp-lab-regret", title: meaning("regret") });
  why = make("p", "rp-lab-why");
  apply = makeButton("Apply", { id: "lab-apply", className: "primary", onclick: applyAnswer });
  done = make("p", { className: "rp-lab-done", role: "status" });
  element.append(question, make("div", "rp-lab-answer", make("div", "", answer, doubt, why, done), apply));
  on("lab", (what) => {
    if (["mode", "asked", "plan", "limits"].includes(what)) ask();
    if (["mode", "points", "job", "plan"].includes(what)) show();
  });
  on("replay", show);
  on("frame", offer); // a knob may have changed
  ask();
  show();
}

// ---- the question -----------------------------------------------------------------------------------------
function limitBox(name, label) {
  const values = { type: "number", min: "0", step: "any", inputMode: "decimal", "aria-label": label };
  const input = make("input", values);
  input.value = lab.limits ? String(lab.limits[name]) : "";
  input.onchange = () =>
    setLimits(...["ttft_ms", "itl_ms"].map((one) => (one === name ? Number(input.value) : lab.limits[one])));
  return input;
}

function ask() {
  if (question.contains(document.activeElement)) return;
  const choice = settingChoice("find", "Value to find", (setting) => WHICH[setting]);
  const itl = limitBox("itl_ms", "Limit of ITL p99 in ms"), ttft = limitBox("ttft_ms", "Limit of TTFT p95 in ms");
  const under = ` ms, under ${lab.scenario ? lab.scenario.title : ""}`;
  question.replaceChildren("The ", choice, " with ITL p99 ≤ ", itl, " ms and TTFT p95 ≤ ", ttft, under);
}

// ---- the answer -------------------------------------------------------------------------------------------
function show() {
  const shown = lab.mode === "find" ? shownPoints() : null;
  offer();
  const wordsOf = (...kinds) => (shown ? findingsOf(shown, ...kinds).map(({ words }) => words) : []);
  if (!shown) answer.replaceChildren(measuring() ? "Measuring." : "Press Find.");
  else answer.replaceChildren(...wordsOf("Answer", "NoAnswer", "Unfinished").flatMap(drawn));
  write(doubt, wordsOf("Regret", "Doubt").map(plain).join(" "));
  write(why, wordsOf("Limited", "SearchPrice").map(plain).join(" "));
  if (applied && (!shown || applied.id !== shown.id)) applied = null;
  showApplied(shown);
}

/* Show the button that applies the answer, unless there is nothing to change. */
function offer() {
  const shown = lab.mode === "find" ? shownPoints() : null, row = answerRow(shown);
  apply.hidden = !row || (row.value === null && store.knobs[shown.setting] === null);
  if (!row) return;
  write(apply, row.value === null ? "Remove the limit" : `Apply ${format.limit(row.value)}`);
  apply.disabled = measuring() || poll.held || store.knobs[shown.setting] === row.value;
  apply.title = poll.held ? "A replay is shown: go back to live first." : "";
}

// ---- Apply ------------------------------------------------------------------------------------------------
/* Change a knob of the running engine; resolves to whether the server has accepted it. */
const change = async (setting, value) => await call("set_knobs", { knobs: { [setting]: value } }) !== undefined;

async function applyAnswer() {
  const shown = shownPoints(), row = shown && answerRow(shown);
  if (!row) return;
  const before = store.knobs[shown.setting];
  if (!await change(shown.setting, row.value)) return;
  applied = { setting: shown.setting, before, id: shown.id };
  store.knobs[shown.setting] = row.value; // the poll brings it too, a moment later
  show();
}

function showApplied(shown) {
  if (!applied) return done.replaceChildren();
  const { setting, before } = applied, value = answerRow(shown).value;
  const undo = makeButton("Undo", { className: "rp-lab-swap", onclick: undoIt, disabled: poll.held });
  done.replaceChildren(`${settingLabel(setting)} is now ${format.limit(value)}. `, undo);

  async function undoIt() {
    if (!await change(setting, before)) return;
    store.knobs[setting] = before;
    applied = null;
    show();
  }
}
