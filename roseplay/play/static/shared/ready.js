/* Whether the server can answer more than the progress of its engine's start. */
import { on } from "./events.js";
import { given } from "./given.js";
import { poll } from "./poll.js";

export const ready = () => Boolean(given.recording) || (poll.count > 0 && !poll.starting);

/** Resolves once it can. @returns {Promise<void>} */
export function whenReady() {
  return new Promise((go) => {
    if (ready()) return go();
    const off = on("start", (start) => {
      if (start) return;
      off();
      go();
    });
  });
}
