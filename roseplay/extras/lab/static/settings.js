/* The settings of A and B, one row each, with editable cells. Rows that differ come first. */
import { make, makeButton, write } from "page/shared/dom.js";
import { format } from "page/shared/format.js";
import { given, isGpu } from "page/shared/given.js";
import { segmented } from "page/shared/legend.js";
import { abHead, rowHead } from "page/shared/table.js";
import { serverName } from "./draw.js";
import { setValue, swapArms } from "./plan.js";
import { ARMS, fillPanel, lab, meaning, say, showOn } from "./state.js";

const UNLIMITED = /^(∞|unlimited|inf|infinity|none|null|)$/i;

let body = null, subtitle = null, only = false; // `only`: show only rows that differ

export function mount(element) {
  const swap = makeButton("swap A ⇄ B", { className: "rp-lab-swap", onclick: () => lab.plan && swapArms() });
  const choice = segmented("Settings shown", ["all", "differences"], (word) => {
    only = word === "differences";
    show();
  });
  element.querySelector(".rp-rt").replaceChildren(choice, swap);
  body = make("tbody");
  subtitle = fillPanel(element, make("table", "rp-lab-table rp-lab-set", abHead("setting", "acts on"), body));
  showOn(show, "plan");
}

/* The setting for an arm's server, if there is a choice. */
function serverSetting() {
  const servers = (lab.catalogue && lab.catalogue.servers) || [];
  return servers.length > 1
    ? { url: { label: "Server", hint: "all figures", compared: "row", kind: "choice", options: servers } }
    : {};
}

/* The settings that have a row, those that differ first: [{group, name, setting, differs}]. */
function rows() {
  const { A, B } = lab.plan,
    groups = { knobs: given.settings.knobs, config: { ...serverSetting(), ...given.settings.config } };
  const list = ["knobs", "config"].flatMap((group) =>
    Object.entries(groups[group]).filter(([name, setting]) => setting.compared === "row" && name in A[group]).map(
      ([name, setting]) => ({ group, name, setting, differs: A[group][name] !== B[group][name] }),
    )
  );
  const rank = (row) => (row.differs ? 0 : row.group === "knobs" ? 1 : 2);
  return list.sort((a, b) => rank(a) - rank(b));
}

function show() {
  if (!lab.plan) return;
  const all = rows(), differing = all.filter((row) => row.differs).length, focused = document.activeElement;
  const key = focused && body.contains(focused) ? focused.dataset.key : null;
  write(subtitle, differing === 1 ? "1 differs" : differing ? `${differing} differ` : "no difference");
  body.replaceChildren(...all.filter((row) => row.differs || !only).map(line));
  if (!only && Object.keys(lab.plan.A.knobs).length) body.append(slow()); // a server may have no knobs
  const again = key && body.querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (again) again.focus();
}

function line(row) {
  const cells = ARMS.map((arm) => make("td", arm.toLowerCase(), cell(row, arm)));
  const head = rowHead(meaning(row.name), row.setting.label);
  return make("tr", row.differs ? "rp-differs" : "", head, ...cells, make("td", "", acts(row)));
}

const device = () => (lab.catalogue && lab.catalogue.engine.device) || "cpu";

const unavailable = (row) => row.setting.needs === "a GPU" && !isGpu(device());

const acts = (row) => (unavailable(row) ? `needs ${row.setting.needs}` : row.setting.hint);

function slow() {
  const cells = ["off", "off", "refused here"].map((words) => make("td", "", words));
  return make("tr", "rp-off", rowHead(meaning("slow_motion"), given.settings.knobs.slow_motion.label), ...cells);
}

function cell(row, arm) {
  const value = lab.plan[arm][row.group][row.name];
  if (unavailable(row)) return make("span", "rp-off", "off");
  const input = ({ choice, switch: onOff }[row.setting.kind] || textBox)(row, arm, value);
  input.dataset.key = `${arm} ${row.name}`;
  input.setAttribute("aria-label", `${row.setting.label}, ${arm}`);
  return input;
}

const set = (row, arm, value) => setValue(arm, row.group, row.name, value);

function onOff(row, arm, value) {
  const onclick = () => set(row, arm, !value);
  return makeButton(format.value(value), { role: "switch", "aria-checked": Boolean(value), onclick });
}

function choice(row, arm, value) {
  const select = make("select"), { none, options } = row.setting;
  for (const option of new Set([...(none ? [null] : []), value, ...options])) {
    const words = row.name === "url" ? serverName(option, options) : format.value(option, row.setting);
    const shown = option === null ? none : words;
    select.append(new Option(shown, option ?? "", false, option === value));
  }
  select.onchange = () => set(row, arm, select.value || null);
  return select;
}

function textBox(row, arm, value) {
  const input = make("input"), unlimited = row.setting.none === "unlimited";
  const shown = value === null && !unlimited ? "auto" : format.value(value);
  Object.assign(input, { type: "text", inputMode: "numeric", value: shown, autocomplete: "off", spellcheck: false });
  input.onfocus = () => input.select();
  input.onkeydown = (event) => {
    if (event.key === "Enter") input.blur();
    if (event.key === "Escape") input.value = shown;
  };
  input.onchange = () => {
    const text = input.value.replace(/[\s\u202f]/g, ""), number = Number(text);
    if (text === shown) return accept(value);
    if (unlimited && UNLIMITED.test(text)) return accept(null);
    if (text && inRange(row.setting, number)) return accept(number);
    input.value = shown;
    say(`${row.setting.label} of ${arm} must be ${rangeText(row.setting)}${unlimited ? ", or unlimited" : ""}.`);
  };
  const accept = (next) => {
    say("");
    set(row, arm, next);
  };
  return input;
}

/* Whether a number has the setting's type and is not too small; only the server knows the upper limit. */
function inRange({ kind, least = -Infinity, above }, number) {
  return (kind === "whole" ? Number.isInteger(number) : Number.isFinite(number)) &&
    (above ? number > least : number >= least);
}

function rangeText({ kind, least, above }) {
  const noun = kind === "whole" ? "a whole number" : "a number";
  return least === undefined ? noun : `${noun} ${above ? "above" : "of at least"} ${least}`;
}
