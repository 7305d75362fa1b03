/* Before a run where to look, after it what it showed. */
import { make, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { lab } from "./state.js";

let list = null, subtitle = null;

export function mount(element) {
  const plot = element.querySelector(".rp-plot");
  subtitle = element.querySelector(".rp-sub");
  list = make("ol", "rp-lab-look");
  plot.classList.add("rp-lab-scroll");
  plot.append(list);
  on("lab", (what) => ["document", "summary", "plan"].includes(what) && show());
  show();
}

function show() {
  const before = (lab.scenario && lab.scenario.look) || [];
  write(subtitle, lab.document ? "what this run showed" : "");
  list.replaceChildren(...(lab.document ? lab.document.summary.sentences : before).map(item));
}

/* A sentence, its first words bold where they end in a colon or a full stop. */
function item(sentence) {
  const [, head, rest] = /^([^.:]{3,32}[:.])\s+(.+)$/s.exec(sentence) || [null, "", sentence];
  return make("li", "", ...(head ? [make("b", "", head), " "] : []), rest);
}
