/* What A and B run with, a row a setting, each cell editable. Rows that differ stand first. */
import { make, makeButton, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { segmented } from "../shared/legend.js";
import { setValue, swapArms } from "./plan.js";
import { ARMS, lab, meaning, say } from "./state.js";
import { tableHead, valueText } from "./words.js";

// name: [title, what it acts on, how it is edited]; `limit`: a number, or unlimited.
const ROWS = {
  knobs: {
    prefill_max_tokens: ["Prefill budget", "smoothness", "limit"],
    max_batch_size: ["Max batch", "throughput", "whole"],
    prefill_max_batch_size: ["Prefill requests", "fairness", "limit"],
    step_max_tokens: ["Step tokens", "smoothness", "limit"],
    chunked_prefill: ["Chunked prefill", "pacing", "switch"],
    prefix_cache: ["Prefix cache", "reuse", "switch"],
    same_step_sharing: ["Same-step sharing", "dedup", "switch"],
    batched_append: ["Batched append", "bandwidth", "switch"],
    admission: ["Admission", "submit", ["queued", "blocking"]],
    cuda_graphs: ["CUDA graphs", "launches", "switch"],
    overlap: ["Overlap", "launches", "switch"],
  },
  config: {
    num_blocks: ["KV blocks", "engine: memory", "whole"],
    block_size: ["Block size", "engine: tokens a block", "whole"],
    max_model_len: ["Longest request", "engine: tokens", "whole"],
    max_waiting: ["Queue length", "engine: requests", "whole"],
    threads: ["Threads", "engine: cores", "whole"],
    pack_weights: ["Packed weights", "engine: bandwidth", "switch"],
    fuse_ops: ["Fused operations", "engine: few tokens", "switch"],
    replay_steps: ["Replayed steps", "engine: few tokens", "switch"],
    attention: ["Attention", "engine: KV reads", ["auto", "cpu", "gather", "reference"]],
    dtype: ["Number format", "engine: bandwidth", ["float32", "bfloat16", "float16"]],
  },
};
const GPU = new Set(["cuda_graphs", "overlap"]);
const UNLIMITED = /^(∞|unlimited|inf|infinity|none|null|)$/i;

let body = null, subtitle = null, only = false; // `only` those that differ

export function mount(element) {
  const plot = element.querySelector(".rp-plot"), swap = makeButton("swap A ⇄ B", "rp-lab-swap");
  const choice = segmented("Settings shown", ["all", "differences"], (word) => {
    only = word === "differences";
    show();
  });
  swap.onclick = () => lab.plan && swapArms();
  element.querySelector(".rp-rt").replaceChildren(choice, swap);
  subtitle = element.querySelector(".rp-sub");
  body = make("tbody");
  plot.classList.add("rp-lab-scroll");
  plot.append(make("table", "rp-lab-table rp-lab-set", tableHead("setting", "acts on"), body));
  on("lab", (what) => what === "plan" && show());
  show();
}

/* Every setting there is, those that differ first: [{group, name, title, acts, kind, differs}]. */
function rows() {
  const found = [];
  for (const group of ["knobs", "config"]) {
    for (const name of Object.keys(lab.plan.A[group])) {
      const known = ROWS[group][name], value = lab.plan.A[group][name], other = lab.plan.B[group][name];
      if (name === "slow_motion" || (group === "config" && !known)) continue;
      const guess = typeof value === "boolean" ? "switch" : "limit";
      const [title, acts, kind] = known || [name.replace(/_/g, " "), "", guess];
      const order = Object.keys(ROWS[group]).indexOf(name);
      found.push({ group, name, title, acts, kind, differs: value !== other, order });
    }
  }
  const rank = (row) => (row.differs ? 0 : row.group === "knobs" ? 1 : 2);
  return found.sort((a, b) => rank(a) - rank(b) || a.order - b.order);
}

function show() {
  if (!lab.plan) return;
  const all = rows(), differing = all.filter((row) => row.differs).length, focused = document.activeElement;
  const key = focused && body.contains(focused) ? focused.dataset.key : null;
  write(subtitle, differing === 1 ? "1 differs" : differing ? `${differing} differ` : "no difference");
  body.replaceChildren(...all.filter((row) => row.differs || !only).map(line));
  if (!only) body.append(slow());
  const again = key && body.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (again) again.focus();
}

function line(row) {
  const tr = make("tr", row.differs ? "rp-differs" : ""), th = make("th", "", row.title);
  th.scope = "row";
  th.title = meaning(row.name);
  const cells = ARMS.map((arm) => make("td", arm.toLowerCase(), cell(row, arm)));
  tr.append(th, ...cells, make("td", "", acts(row)));
  return tr;
}

const device = () => (lab.catalogue && lab.catalogue.engine.device) || "cpu";

const unavailable = (row) => GPU.has(row.name) && !device().startsWith("cuda");

const acts = (row) => (unavailable(row) ? "needs a GPU" : row.acts);

function slow() {
  const tr = make("tr", "rp-off"), th = make("th", "", "Slow motion");
  th.scope = "row";
  th.title = meaning("slow_motion");
  tr.append(th, make("td", "", "off"), make("td", "", "off"), make("td", "", "refused here"));
  return tr;
}

function cell(row, arm) {
  const value = lab.plan[arm][row.group][row.name];
  if (unavailable(row)) return make("span", "rp-off", "off");
  const build = Array.isArray(row.kind) ? choice : row.kind === "switch" ? onOff : textBox,
    input = build(row, arm, value);
  input.dataset.key = `${arm} ${row.name}`;
  input.setAttribute("aria-label", `${row.title}, ${arm}`);
  return input;
}

const set = (row, arm, value) => setValue(arm, row.group, row.name, value);

function onOff(row, arm, value) {
  const button = makeButton(valueText(value));
  button.setAttribute("role", "switch");
  button.setAttribute("aria-checked", String(Boolean(value)));
  button.onclick = () => set(row, arm, !value);
  return button;
}

function choice(row, arm, value) {
  const select = make("select");
  for (const option of new Set([value, ...row.kind])) {
    select.append(new Option(option, option, false, option === value));
  }
  select.onchange = () => set(row, arm, select.value);
  return select;
}

function textBox(row, arm, value) {
  const input = make("input");
  const shown = value === null && row.kind === "whole" ? "auto" : valueText(value);
  Object.assign(input, { type: "text", inputMode: "numeric", value: shown, autocomplete: "off", spellcheck: false });
  input.onfocus = () => input.select();
  input.onkeydown = (event) => {
    if (event.key === "Enter") input.blur();
    if (event.key === "Escape") input.value = shown;
  };
  input.onchange = () => {
    const text = input.value.replace(/[\s\u202f]/g, ""), number = Number(text);
    if (text === shown) return accept(value);
    if (row.kind === "limit" && UNLIMITED.test(text)) return accept(null);
    if (text && Number.isInteger(number) && number >= 1) return accept(number);
    input.value = shown;
    const also = row.kind === "limit" ? ", or unlimited" : "";
    say(`${row.title} of ${arm} takes a whole number of at least 1${also}.`);
  };
  const accept = (next) => {
    say("");
    set(row, arm, next);
  };
  return input;
}
