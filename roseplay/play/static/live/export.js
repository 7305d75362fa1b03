/* Copies the current settings: as vLLM's flags where it has them, or with the header's figures as text. */
import { copy } from "../shared/copy.js";
import { make, makeButton, write } from "../shared/dom.js";
import { format } from "../shared/format.js";
import { given, vllmFlag } from "../shared/given.js";
import { chosenIn, inputOf } from "../shared/gradio.js";
import { popover } from "../shared/popover.js";
import { store } from "../shared/store.js";
import { lacks } from "./knobs.js";
import { label } from "./simulation.js";

/** All settings with a flag: knobs, except those without effect here, and the engine's initial settings. */
function vllmFlags() {
  const { knobs, config } = given.settings;
  const inEffect = Object.keys(knobs).filter((name) => !lacks(name)).map((name) =>
    vllmFlag(knobs[name], store.knobs[name])
  );
  const started = Object.keys(config).map((name) => vllmFlag(config[name], store.info && store.info[name]));
  return [...inEffect, ...started].filter(Boolean);
}

const lines = (title, rows) => [title, ...rows.map(([name, value]) => `  ${name}: ${value}`), ""];

const input = (id) => inputOf(id)?.value ?? "–";

/** Settings, traffic and the header's figures as text. */
function asText() {
  const { knobs } = given.settings, { info } = store;
  const steady = document.querySelector("#rp-steady [aria-checked=true]");
  const figure = (cell) => [cell.querySelector(".rp-term").textContent, cell.querySelector("b").textContent];
  const named = (name) => [`${knobs[name].label} (${name})`, format.value(store.knobs[name], knobs[name])];
  return [
    `roseplay ${document.querySelector("#rp-foot span:last-child").textContent}`,
    info
      ? `${info.model}, ${info.device}, ${info.dtype}, ${info.num_blocks} KV blocks of ${info.block_size} tokens`
      : "",
    ...(info?.simulated ? [`Simulated: ${info.simulated}. The figures below: ${label()}.`] : []),
    "",
    ...lines("Settings", Object.keys(knobs).filter((name) => name in store.knobs && !lacks(name)).map(named)),
    ...lines("Traffic", [
      ["burst size", input("burst-size")],
      ["answer length", input("answer-length")],
      ["prompts", chosenIn("mix") || "–"],
      ["steady requests/s", steady ? input("steady-rate-value") : "off"],
    ]),
    ...lines("Figures", [...document.querySelectorAll("#rp-kpis .rp-kpi")].map(figure)),
  ].join("\n").trim();
}

function fill() {
  const status = make("p", { role: "status" }), shown = make("blockquote", { tabIndex: 0, hidden: true });
  async function take(text, what) {
    write(shown, text);
    shown.hidden = false;
    popover.fit();
    write(status, await copy(text) ? `Copied ${what}.` : "The browser does not let the page copy: here is the text.");
  }
  const flags = () => take(vllmFlags().join(" "), format.many(vllmFlags().length, "vLLM flag"));
  const all = () => take(asText(), "settings, traffic and figures");
  const copies = make("div", "rp-copies", makeButton("as vLLM flags", { onclick: flags }));
  copies.append(makeButton("settings and figures", { onclick: all }));
  return [copies, shown, status];
}

/** @param {HTMLElement} element the rail's foot */
export function mount(element) {
  const opener = element.querySelector("button");
  opener.onclick = () => popover.toggle({ name: "copy", title: "Copy", opener, side: "right", fill });
}
