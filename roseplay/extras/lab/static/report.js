/* The views of a result in a report, which is a page of its own. */
import { make } from "page/shared/dom.js";
import { draw as drawPair } from "page/shared/pair/report.js";
import { panels } from "page/shared/panel.js";
import { mount as goodput } from "./goodput.js";
import { mount as itl } from "./itl.js";
import { mount as itlOfPoints } from "./points/itl.js";
import { mount as kept } from "./points/kept.js";
import { mount as left } from "./points/left.js";
import { mount as ttftOfPoints } from "./points/ttft.js";
import { lab } from "./state.js";
import { mount as steps } from "./steps.js";
import { mount as ttft } from "./ttft.js";

const VIEWS = {
  compare: { "Inter-token latency": itl, "Time to first token": ttft, Goodput: goodput, "Tokens per step": steps },
  sweep: { "Time to first token": ttftOfPoints, "Inter-token latency": itlOfPoints, Goodput: kept },
  find: {
    "Inter-token latency": itlOfPoints,
    "Time to first token": ttftOfPoints,
    "Where the answer can still be": left,
  },
};

/** Show a result's views in an element. All are drawn at once, also those out of sight, which may be printed. */
export function draw(element, result) {
  const { kind, limits, setting, summary } = result;
  Object.assign(lab, { mode: kind, limits });
  if (kind === "compare") lab.document = result;
  else {
    lab.points[kind] = result;
    lab.asked[kind].setting = setting;
  }
  if (summary.pair) {
    const pair = make("canvas", { className: "pair", role: "img" });
    element.append(pair);
    drawPair(pair, { ...summary.pair, sentence: [] });
  }
  for (const [title, mount] of Object.entries(VIEWS[kind])) {
    const head = make("h2", "", make("span", "rp-rt"), title, " ", make("small", "rp-sub"));
    const view = make("section", "view", head, make("div", "rp-plot"));
    element.append(view);
    mount(view);
  }
  const all = () => panels.forEach((panel) => panel.drawNow());
  document.fonts.ready.then(all);
  addEventListener("beforeprint", all);
}
