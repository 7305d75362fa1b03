/* The rail's fields for a sweep or a search: the setting, and the range of its values. */
import { make } from "page/shared/dom.js";
import { edit, lab, meaning, showOn } from "../state.js";
import { settingLabel } from "./document.js";

const SETTINGS = {
  sweep: ["rate_per_s", "prompt_tokens", "prefill_max_tokens", "max_batch_size"],
  find: ["prefill_max_tokens", "max_batch_size"],
};
const RANGES = {
  rate_per_s: [1, null],
  prompt_tokens: [64, 1024],
  prefill_max_tokens: [16, 1024],
  max_batch_size: [1, 64],
};
const WITH = [["engine", "as the engine runs now"], ["arms", "A and B"]];
const LABELS = { from: "From", to: "To", points: "Points", seconds: "Seconds" };

let box = null;

export function mount(element) {
  box = make("div", { className: "rp-lab-vary", role: "group", "aria-label": "Setting to vary" });
  element.append(box);
  showOn(show, "mode", "asked", "traffic", "library");
}

/* Vary another setting, over its usual range. */
function chooseSetting(kind, setting) {
  const [from, to] = RANGES[setting];
  Object.assign(lab.asked[kind], { setting, from, to });
  edit("asked");
}

/** A choice of the settings that a sweep or a search can vary. */
export function settingChoice(kind, label, wording) {
  const select = make("select", { "aria-label": label });
  for (const setting of SETTINGS[kind]) {
    select.append(new Option(wording(setting), setting, false, setting === lab.asked[kind].setting));
  }
  select.onchange = () => chooseSetting(kind, select.value);
  return select;
}

/* A choice of the other settings: the engine's, or those of A and B, which are then both measured. */
function armsChoice() {
  const select = make("select", { "aria-label": "Other settings", title: meaning("lab-sweep-arms") });
  for (const [value, words] of WITH) {
    select.append(new Option(words, value, false, (value === "arms") === lab.asked.sweep.both));
  }
  select.onchange = () => {
    lab.asked.sweep.both = select.value === "arms";
    edit("asked");
  };
  return make("label", "rp-lab-num rp-lab-which", make("span", "", "Other settings"), select);
}

function field(kind, name) {
  const input = make("input", { type: "number", min: "0", step: "any", inputMode: "decimal" });
  const open = name === "to" && lab.asked[kind].setting === "rate_per_s"; // empty, it doubles the rate
  input.id = `lab-asked-${name}`;
  input.value = String(lab.asked[kind][name] ?? "");
  input.placeholder = open ? "limits" : "";
  input.oninput = () => {
    lab.asked[kind][name] = input.value === "" ? null : Number(input.value);
    markOpen();
    edit("typed");
  };
  const label = { className: `rp-lab-num rp-of-${name}`, title: open ? meaning("lab-sweep-to") : "" };
  return make("label", label, make("span", "", LABELS[name]), input);
}

/* A sweep that doubles the rate has no number of points. */
const markOpen = () => box.classList.toggle("rp-open", lab.mode === "sweep" && lab.asked.sweep.to === null);

function show() {
  const page = document.getElementById("rp-lab");
  if (page) page.dataset.sweeps = lab.mode === "sweep" ? lab.asked.sweep.setting : "";
  if (lab.mode === "compare") return box.replaceChildren();
  const kind = /** @type {"sweep" | "find"} */ (lab.mode), { setting } = lab.asked[kind];
  const rate = setting === "rate_per_s",
    wording = (name) => (name === "rate_per_s" ? "Rate, requests/s" : settingLabel(name));
  const change = settingChoice(kind, kind === "sweep" ? "Change" : "Look for", wording);
  const fields = ["from", "to", ...(kind === "sweep" ? ["points"] : []), ...(rate && !lab.traffic ? ["seconds"] : [])];
  const title = make("span", "", kind === "sweep" ? "Change" : "Look for");
  const which = make("label", "rp-lab-num rp-lab-which", title, change), arms = kind === "sweep" ? [armsChoice()] : [];
  box.replaceChildren(which, ...fields.map((name) => field(kind, name)), ...arms);
  markOpen();
}
