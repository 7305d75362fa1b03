/* Sentences that say where to look before a run, and what it showed afterwards. */
import { make, write } from "page/shared/dom.js";
import { drawn } from "page/shared/sentence.js";
import { fillPanel, lab, shownPoints, showOn } from "./state.js";

let list = null, subtitle = null;

export function mount(element) {
  list = make("ol", "rp-lab-look");
  subtitle = fillPanel(element, list);
  showOn(show, "document", "summary", "plan", "mode", "points", "asked");
}

const BEFORE = {
  both: [
    "Where A and B cross: the values between which the better one changes.",
    "The knee of each, and where its goodput peaks.",
  ],
  sweep: [
    "The knee: up to it, every rate keeps both limits. For other settings, ITL rises steeply after it.",
    "Where goodput peaks: the most requests/s within both limits.",
  ],
  find: ["Which limit is exceeded first, at either end.", "The price: what the answer costs in the other figures."],
};

function show() {
  const shown = lab.mode === "compare" ? lab.document : shownPoints();
  const kind = lab.mode === "sweep" && lab.asked.sweep.both ? "both" : lab.mode;
  const before = BEFORE[kind] || (lab.scenario && lab.scenario.look) || [];
  write(subtitle, shown ? "what this run showed" : "");
  const items = shown ? shown.summary.findings.map(({ words }) => drawn(words)) : before.map((sentence) => [sentence]);
  list.replaceChildren(...items.map((parts) => make("li", "", ...parts)));
}
