/* The thinking part of a reasoning model's answer: visible while it is written, one line once it has ended. */
import { make, makeButton, write } from "../shared/dom.js";
import { format } from "../shared/format.js";

const OPEN = "<think>", CLOSE = "</think>";

/** The position of the thinking part in an answer: its text without the tags, and where the answer itself begins.
 * @typedef {{start: number, end: number, after: number, closed: boolean}} Part */

/** @param {string} text of the answer so far
 * @param {boolean} begun whether the prompt has opened the part already
 * @returns {Part | null} null without such a part */
export function thinkingPart(text, begun) {
  const lead = text.length - text.trimStart().length, tagged = text.startsWith(OPEN, lead), close = text.indexOf(CLOSE);
  // A part that is closed but not opened in the answer was opened in the prompt.
  if (!tagged && !begun && close < 0) return null;
  if (!tagged && !begun && text.slice(0, close).includes(OPEN)) return null; // it only talks of such parts
  const from = tagged ? lead + OPEN.length : 0, to = close < 0 ? text.length : close;
  const within = text.slice(from, to), start = to - within.trimStart().length;
  if (close < 0) return { start, end: text.length, after: text.length, closed: false };
  const rest = text.slice(close + CLOSE.length);
  const end = Math.max(start, from + within.trimEnd().length);
  return { start, end, after: close + CLOSE.length + rest.length - rest.trimStart().length, closed: true };
}

export class Thought {
  /** @param {() => void} toggled called when its reader has opened or closed it */
  constructor(toggled) {
    this.body = make("div", "rp-thought-text");
    this.words = make("span");
    this.head = makeButton(this.words, { className: "rp-thought-head" });
    this.head.onclick = () => {
      this.open(!this.opened);
      toggled();
    };
    this.root = make("div", "rp-thought", this.head, this.body);
    this.open(true);
  }

  /** @param {boolean} yes whether its text is to be seen */
  open(yes) {
    this.opened = yes;
    this.body.hidden = !yes;
    this.head.setAttribute("aria-expanded", String(yes));
  }

  /** @param {Part} part
   * @param {boolean} over whether the answer has ended
   * @param {number} ms that it took so far
   * @param {number} tokens */
  say({ closed }, over, ms, tokens) {
    const figures = `${format.seconds(ms)}, ${format.count(tokens)} token${tokens === 1 ? "" : "s"}`;
    write(this.words, closed ? `thought for ${figures}` : over ? `thought for ${figures}, unfinished` : "thinking…");
    this.root.dataset.thinking = String(!closed && !over);
  }
}
