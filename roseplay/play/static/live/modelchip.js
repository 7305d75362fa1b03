/* The header's chip with the running model, or the one in the recording shown: its name, and its device and
 * type or its server. If another model can be loaded, it is a button that opens the list. */
import { make } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { store } from "../shared/store.js";
import { slower, toggleModels } from "./modelpicker.js";
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
