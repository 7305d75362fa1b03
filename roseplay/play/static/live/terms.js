/* Terms that are explained in place. A label is a button (`.rp-term`) whose popover says what it means, what to watch
 * when it changes, the cost of a change, vLLM's equivalent, and its current value. The texts come with the page: those
 * of settings from their catalogue, all others from the glossary. */
import { make, makeButton, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { given } from "../shared/given.js";
import { factRow, popover } from "../shared/popover.js";
import { store } from "../shared/store.js";
import { clock } from "../shared/time.js";
import { slowedFirst } from "../shared/past.js";
import { rowHead, tableHead } from "../shared/table.js";
import { knobMarks, valueText } from "./knobmarks.js";
import { sinceChange } from "./gaps.js";

/** @import { Explained } from "../shared/given.js" */

const SAVED = "saved by sharing", NAME = "term", AGAIN_MS = 250, TRIES = 40;
const TRAFFIC = { "burst-size": "Burst size", "answer-length": "Answer length", "steady-rate": "Rate" };

/** What there is to say of a button's word. @returns {Explained} */
function explanationOf({ dataset: { knob, term } }) {
  if (!knob) return given.glossary[term];
  const { help, needs, watch, costs, flag, nearest, opposite } = given.settings.knobs[knob];
  return { what: needs ? `${help} Needs ${needs}.` : help, watch, costs, flag, nearest, opposite, knob };
}

// ---- how it stands now ------------------------------------------------------------------------------------
function ofKnob(knob) {
  const value = store.knobs[knob], latest = knobMarks().reverse().find((mark) => knob in mark.changes);
  if (value === undefined) return "";
  const since = latest
    ? `, changed ${format.ago(clock() - latest.t)} from ${valueText(knob, latest.changes[knob][0])}`
    : "";
  return valueText(knob, value) + since;
}

/* The figure above it in the header, or the number in its own row. */
function ofTerm(button) {
  const cell = button.closest(".rp-kpi"), block = button.closest(".rp-slider");
  if (cell) return cell.querySelector("b").textContent.replace("/", " / ").replace(/(ms|tok|%)$/, " $1");
  const box = block &&
    document.querySelector(block.classList.contains("rp-nonum") ? `#${block.id}-value input` : `#${block.id} input`);
  return box ? box.value : "";
}

const now = (button) => button.dataset.knob ? ofKnob(button.dataset.knob) : ofTerm(button);

// ---- the popover ------------------------------------------------------------------------------------------
/* What stands between ** and ** is bold. */
const marked = (text) => text.split("**").map((part, i) => (i % 2 ? make("b", "", part) : part));

const chip = (flag) => make("code", "", flag);

/** @param {Explained} it */
function vllm({ knob, flag, nearest, opposite, vllm: metrics }) {
  if (metrics) return metrics.map(chip);
  if (flag) return opposite ? [chip(flag), " where this is off"] : [chip(flag)];
  if (nearest) return ["no equivalent; nearest: ", chip(nearest)];
  return knob ? ["no equivalent"] : null;
}

let opened = null, nowCell = null;

function fill(button) {
  const it = explanationOf(button), theirs = vllm(it), value = now(button), rows = [];
  if (it.example) rows.push(factRow("a line", chip(it.example)));
  if (it.notes) rows.push(factRow("also", it.notes));
  if (it.watch) rows.push(factRow("watch", ...marked(it.watch)));
  if (it.costs) rows.push(factRow("costs", it.costs));
  if (theirs) rows.push(factRow("vLLM", ...theirs));
  nowCell = value ? factRow("now", value) : null;
  if (nowCell) rows.push(nowCell);
  const since = sinceChange(button.closest(".rp-kpi")?.classList[1] || "");
  if (since) rows.push(factRow("since", since));
  const more = button.dataset.term === SAVED ? [savings()] : [];
  return [make("p", "", it.what), make("dl", "rp-rows", ...rows), ...more];
}

function explain(button) {
  opened = button;
  const side = button.closest("#rp-rail") ? "right" : "below", title = button.dataset.title || button.textContent;
  const news = button.dataset.term === SAVED ? savingsNews : undefined;
  popover.toggle({ name: NAME, title, opener: button, side, fill: () => fill(button), news });
}

function tick() {
  if (popover.name === NAME && nowCell) write(nowCell.lastElementChild, now(opened));
}
on("frame", tick);
setInterval(tick, 1000);

document.addEventListener("click", ({ target }) => {
  const button = target instanceof Element && target.closest(".rp-term");
  if (button) explain(button);
});

// ---- what sharing saved ------------------------------------------------------------------------------------
const ROWS = [
  ["prompt tokens", "prompt_tokens"],
  ["computed", "computed"],
  ["from the prefix cache", "cached"],
  ["from the same step", "shared"],
  ["blocks saved", "blocks_saved"],
];
const { count, ms, many } = format;

const savingsNews = () => JSON.stringify([store.burst, store.stats?.in_all]);

function savings() {
  const { burst, stats } = store, all = stats?.in_all;
  const done = burst && burst.done < burst.size ? ` · ${burst.done} done` : "";
  const row = (name, ...cells) => make("tr", "", rowHead("", name), ...cells.map((text) => make("td", "", text)));
  const rows = ROWS.map(([name, key]) => row(name, ...[burst, all].map((figures) => count(figures?.[key]))));
  const slow = slowedFirst(store.bursts.get(burst?.burst)?.requests ?? []);
  const ttft = burst?.ttft_p50 == null ? "–" : `${ms(burst.ttft_p50)} / ${ms(burst.ttft_p95)} ms${slow}`;
  const newest = burst ? `${burst.size} × ${burst.label}${done}` : "none yet";
  const which = row("", newest, all?.requests ? many(all.requests, "request") : "none yet");
  const body = make("tbody", "", which, ...rows, row("TTFT p50 / p95", ttft, ""));
  return make("table", "rp-savings", tableHead([""], ["last burst"], ["in all"]), body);
}

/* The rail says which prompts the newest burst had. */
on("frame", () => {
  const place = document.querySelector("#rp-traffic-head h3 span");
  if (place && store.burst) write(place, `last seed ${store.burst.seed}`);
});

// ---- labels of Gradio's controls --------------------------------------------------------------------------
export const termButton = (text, dataset) => {
  const button = makeButton(text, { className: "rp-term", "aria-expanded": "false", "aria-haspopup": "dialog" });
  Object.assign(button.dataset, dataset);
  return button;
};

/* The button replaces the label's words, which are hidden but still name the control. */
function label(id, dataset) {
  const caption = document.querySelector(`#${id} > [data-testid=block-info]`); // of a row of words
  const words = caption || document.querySelector(`#${id} label > span`);
  if (!words) return false;
  const block = document.getElementById(id);
  if (!block.querySelector(".rp-term")) {
    (caption || words.parentElement).before(termButton(words.textContent.trim(), dataset));
    block.classList.add("rp-explained");
  }
  return true;
}

/* The kinds of prompts are chosen by their labels; a button beside them explains the chosen one. */
function ofKinds() {
  const kinds = document.getElementById("mix"), chosen = kinds && kinds.querySelector("label.selected span");
  if (!chosen) return false;
  const kind = chosen.textContent.trim();
  if (!kinds.querySelector(".rp-term")) kinds.append(termButton("?", {}));
  /** @type {HTMLElement} */
  const button = kinds.querySelector(".rp-term");
  Object.assign(button.dataset, { term: kind, title: kind });
  button.setAttribute("aria-label", `What is ${kind}?`);
  return true;
}

/** Make the labels of Gradio's controls buttons. It mounts them one by one: while some are missing, try again. */
export function labelControls(left = TRIES) {
  const made = [
    ...Object.entries(given.controls).map(([knob, id]) => label(id, { knob })),
    ...Object.entries(TRAFFIC).map(([id, term]) => label(id, { term })),
    ofKinds(),
  ];
  if (made.includes(false) && left) setTimeout(labelControls, AGAIN_MS, left - 1);
}

document.addEventListener("input", () => setTimeout(ofKinds, 50));
