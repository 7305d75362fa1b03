/* A popover beside a state slot or a kept state, with what is known about it. */
import { make } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { factList, factRow, popover, requestTag } from "../shared/popover.js";
import { states } from "../shared/states.js";

const NAME = "state";

/** The slot that is open, and what it showed. */
let open = 0, seen = "";

/** "State slot 3", or "Kept state 5". */
export const stateName = (slot) => states.isKept(slot) ? `Kept state ${slot - states.slots}` : `State slot ${slot}`;

/** What is in it, in a few words. */
export function stateWords(slot) {
  const { request, tokens } = states;
  if (request[slot] < 0) return "free";
  return states.isKept(slot) ? `after ${format.many(tokens[slot], "token")} of #${request[slot]}` : `#${request[slot]}`;
}

/** Open the popover of a slot beside a point of the window; `closed` is called at its end. */
export function stateInfo(slot, x, y, closed) {
  popover.open({
    name: NAME,
    title: stateName(slot),
    x,
    y,
    fill(body) {
      seen = stateWords(slot);
      body.append(...(states.isKept(slot) ? kept(slot) : running(slot)));
    },
    closed() {
      open = 0;
      closed();
    },
  });
  open = slot;
}

on("reset", () => {
  if (open) popover.close();
});
on("frame", () => {
  if (open && stateWords(open) !== seen) popover.refill();
});

function running(slot) {
  const rid = states.request[slot];
  if (rid < 0) return [make("p", "", "No request holds it. A request gets a slot when it begins to run.")];
  const what = "The state of the recurrent layers for one request. Its size does not depend on the length of the text.";
  return [make("p", "", what), factList(factRow("held by", requestTag(rid)))];
}

function kept(slot) {
  const rid = states.request[slot], { count } = format;
  if (rid < 0) return [make("p", "", "No state is kept here.")];
  const what = [make("b", "", "Kept"), " with the blocks before it, for a prompt that begins the same."];
  return [
    make("p", "", ...what),
    factList(factRow("state of", requestTag(rid)), factRow("after", `its first ${count(states.tokens[slot])} tokens`)),
  ];
}
