/* "This machine" in the help: how the parts of a step are computed here, and what makes them slow. */
import { make } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { store } from "../shared/store.js";

let place = null;

function show() {
  const choices = store.info?.choices ?? [];
  if (!place) return;
  place.hidden = !choices.length;
  place.querySelector("dl").replaceChildren(...choices.map((choice) => {
    const what = make("dd", "", choice.chosen);
    if (choice.why) what.append(make("small", "", choice.why));
    if (choice.slow) what.append(make("em", "", choice.slow));
    return make("div", "", make("dt", "", choice.part), what);
  }));
}

on("reset", show);

/** @param {HTMLElement} element the help */
export function mountMachine(element) {
  place = element.querySelector(".machine");
  show();
}
