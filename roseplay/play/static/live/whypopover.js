/* A popover that explains why a selected token was slow, beside the point that was clicked. */
import { make } from "../shared/dom.js";
import { emit, on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { factList, factRow, popover, requestTag } from "../shared/popover.js";
import { slowed } from "../shared/past.js";
import { store } from "../shared/store.js";
import { preemptedAbout } from "./served.js";
import { bare, bold, milliseconds, say, why } from "./why.js";

const lastPress = { x: innerWidth / 2, y: innerHeight / 2 };
document.addEventListener("pointerdown", ({ clientX, clientY }) => {
  Object.assign(lastPress, { x: clientX, y: clientY });
}, true);

function drawn(part) {
  if (typeof part === "string") return part;
  return "bold" in part ? make("b", "", part.bold) : requestTag(part.rid);
}

export const paragraph = (parts) => make("p", "", ...parts.map(drawn));

/* The step as one bar: its decode tokens, then its prompt tokens. */
function bar({ decode_tokens: decode, prompt_tokens: prompt }) {
  const share = (n) => make("i", { style: `width: ${(100 * n) / Math.max(1, decode + prompt)}%` });
  const words = [`${format.count(decode)} decode`, `${format.count(prompt)} prompt`];
  const track = make("div", { className: "rp-share", "aria-hidden": true }, share(decode), share(prompt));
  return [track, make("div", "rp-shares", ...words.map((text) => make("span", "", text)))];
}

/* For a token whose step is no longer kept, or never was: the gap, from its lane or its dot. */
function past({ itl, usual, t }) {
  const instead = usual ? ` instead of ${bare(usual)}` : "";
  const took = Number.isNaN(itl) || itl === undefined
    ? []
    : say`It took ${bold(milliseconds(itl))}${instead}${slowed(t)}. `;
  const { steps } = store.absent, preempted = steps ? preemptedAbout(t - (itl || 0), t) : 0;
  const reason = preempted
    ? `. About then it preempted ${format.many(preempted, "request")}, of any client, as its KV blocks ran out.`
    : ", so the reason is not known.";
  const why = steps && steps + reason;
  return paragraph([...took, why || "Its step is no longer kept, so nothing more is known."]);
}

function contents({ facts, sentence, step, help }) {
  const rows = facts.map(([name, value]) => factRow(name, ...value.map(drawn)));
  return [paragraph(sentence), ...bar(step), factList(...rows), ...(help ? [make("p", "rp-hand", help)] : [])];
}

let replacing = false;

on("select", (what) => {
  const answer = what && what.step !== null ? why(what.rid, what.step) : null;
  replacing = true; // the popover that closes now is replaced, not dismissed
  if (popover.name === "why") popover.close();
  replacing = false;
  if (!what || (!answer && what.token === undefined && !store.absent.steps)) return;
  popover.open({
    name: "why",
    title: answer ? answer.title : "Was this token slow?",
    stays: true,
    x: what.x ?? lastPress.x,
    y: what.y ?? lastPress.y,
    around: what.around,
    fill: () => (answer ? contents(answer) : [past(what)]),
    closed: () => replacing || emit("select", null),
  });
});
