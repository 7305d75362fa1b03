/* A file's requests in place of a scenario's. The file is chosen in the list of scenarios, or dropped on it. */
import { make, makeButton, write } from "../shared/dom.js";
import { format } from "../shared/format.js";
import { takeFiles } from "../shared/takefiles.js";
import { chooseScenario } from "./plan.js";
import { lab, say, tell } from "./state.js";

const LARGEST = 8 * 2 ** 20; // the server's limit
const NOTHING = "A file: JSONL, CSV or ShareGPT.";
let card = null, about = null;

/** The last card of the list, with its drawing. */
export function ownCard(drawing) {
  const input = make("input", { type: "file", hidden: true, accept: ".jsonl,.json,.csv,.txt" });
  about = make("span");
  card = makeButton(make("b", "", "Your own traffic…"), { className: "rp-lab-card", role: "radio" });
  card.dataset.name = lab.catalogue.own.name;
  card.append(about, drawing, input);
  takeFiles(card, input, card, take);
  card.setAttribute("aria-label", "Your own traffic: choose a file");
  input.onclick = (event) => event.stopPropagation();
  showOwnCard();
  return card;
}

async function take(file) {
  if (file.size > LARGEST) return say(`${file.name} is larger than 8 MiB: use a part of it.`);
  lab.traffic = { name: file.name.slice(0, 80), text: await file.text() };
  chooseScenario(lab.catalogue.own.name, { fresh: true });
  tell("traffic");
}

/** Show on the card which file is used. */
export function showOwnCard() {
  if (!about) return;
  const { traffic } = lab,
    count = traffic && traffic.requests ? `${format.many(traffic.requests.length, "request")}, ` : "";
  write(about, traffic ? `${count}${traffic.name || "from a file"}` : NOTHING);
}
