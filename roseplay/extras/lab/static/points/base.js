/* The settings that a search uses, which are those of the running engine, and what Apply would change. */
import { make, write } from "page/shared/dom.js";
import { on } from "page/shared/events.js";
import { format } from "page/shared/format.js";
import { given, vllmFlag } from "page/shared/given.js";
import { poll } from "page/shared/poll.js";
import { store } from "page/shared/store.js";
import { rowHead, tableHead } from "page/shared/table.js";
import { fillPanel, lab, meaning, shownPoints, showOn } from "../state.js";
import { answerRow } from "./document.js";

let body = null, subtitle = null;

export function mount(element) {
  const head = tableHead(["setting"], ["now"], ["after Apply"], ["vLLM flag"]);
  body = make("tbody");
  subtitle = fillPanel(element, make("table", "rp-lab-table rp-lab-basis", head, body));
  on("frame", followKnobs);
  on("replay", show);
  showOn(show, "mode", "points", "plan", "job");
}

let seen = "";
function followKnobs() {
  if (lab.mode !== "find") return;
  const now = JSON.stringify(store.knobs);
  if (now !== seen) show();
  seen = now;
}

function show() {
  const shown = shownPoints(), row = answerRow(shown), varied = shown ? shown.setting : null;
  const named = Object.entries(given.settings.knobs).filter(([name]) => name !== "slow_motion" && name in store.knobs);
  const differs = row && store.knobs[varied] !== row.value;
  const whose = poll.held ? "as recorded, not as the engine runs" : "as the engine runs now";
  write(subtitle, differs ? `${whose}; one differs` : whose);
  body.replaceChildren(...named.map(([name, setting]) => line(name, setting)));

  function line(name, setting) {
    const now = store.knobs[name], after = row && name === varied ? row.value : now;
    const changes = after !== now, flag = vllmFlag(setting, after) || setting.flag || "no equivalent";
    const texts = [now, after].map((value) => format.value(value, setting));
    const cells = [...texts, flag].map((words) => make("td", "", words));
    const look = { className: changes ? "rp-differs" : "", "data-knob": name };
    return make("tr", look, rowHead(meaning(name), setting.label), ...cells);
  }
}
