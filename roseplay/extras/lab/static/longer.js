/* Longer and repeated runs: the factor for the scenario's number of requests, and the spread at which repeats stop. */
import { make } from "page/shared/dom.js";
import { segmented } from "page/shared/legend.js";
import { edit, lab, meaning, showOn } from "./state.js";

const LENGTHS = [1, 4, 10];
const words = (length) => `×${length}`;
let length = null, spread = null;

export function mount(element) {
  length = make("div", { title: meaning("lab-length") });
  const name = "Repeat until the spread is at most this percentage";
  const values = { type: "number", min: "0.1", max: "100", step: "any", inputMode: "decimal", placeholder: "–" };
  const input = make("input", { id: "lab-max-spread", ...values, "aria-label": name });
  input.oninput = () => {
    lab.maxSpread = input.value === "" ? null : Number(input.value);
    edit("typed");
  };
  const label = { className: "rp-lab-spread", title: meaning("lab-max-spread") };
  spread = make("label", label, "repeat until spread ≤", input, "%");
  element.append(make("div", "rp-lab-longer", length, spread));
  showOn(show, "mode", "asked", "traffic", "plan", "document", "points");
}

function show() {
  const timed = lab.mode === "sweep" && lab.asked.sweep.setting === "rate_per_s";
  length.hidden = Boolean(lab.traffic) || timed;
  spread.hidden = lab.mode === "find";
  const choice = segmented("Length of the run", LENGTHS.map(words), (word) => {
    lab.length = LENGTHS.find((one) => words(one) === word);
    edit("typed");
  }, LENGTHS.indexOf(lab.length));
  if (!length.contains(document.activeElement)) length.replaceChildren(choice);
}
