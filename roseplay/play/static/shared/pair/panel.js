/* A picture of two runs in the place of charts, or as a line that opens it. The styles go by `data-pair` of what is
 * around both: "open", "line" or "none". */
import { make, makeButton, write } from "../dom.js";
import { Panel } from "../panel.js";
import { palette } from "../theme.js";
import { COPY, copyPair } from "./copy.js";
import { describePair, drawPair, figureText } from "./picture.js";
import { raceButton, races } from "./race.js";

/** @import { Pair } from "../types.js" */

/** @typedef {object} PairSpec
 * @property {HTMLElement} around the element that gets `data-pair`
 * @property {string} back what the button is called that leads back to the charts
 * @property {(open: boolean) => void} opened the user opens the picture or goes back
 * @property {(head: boolean) => Node[]} [more] buttons that stand beside the picture's, or on the line */

export class PairPanel extends Panel {
  /** @param {HTMLElement} element a panel @param {PairSpec} spec */
  constructor(element, { around, back, opened, more = () => [] }) {
    const copied = makeButton(COPY, { className: "rp-back", onclick: () => copyPair(copied, this.pair) });
    const leave = makeButton(back, { className: "rp-back", onclick: () => opened(false) });
    const race = raceButton(() => this.pair, (now) => this.showUntil(now));
    super(element, { name: "pair", canvas: "rp-pair-picture", head: [race, copied, leave, ...more(true)] });
    this.race = race;
    this.now = Infinity; // up to when it is drawn
    this.around = around;
    /** @type {Pair | null} */
    this.pair = null;
    this.line = makeButton("", { onclick: () => opened(true) });
    this.problem = make("span", { role: "alert" });
    element.append(make("div", "rp-pair-line", this.line, this.problem, ...more(false)));
  }

  /** Show this pair, or its line. @param {Pair | null} pair @param {string} problem words in place of a pair */
  showPair(pair, open, problem = "") {
    this.pair = pair;
    this.race.hidden = !races(pair);
    this.around.dataset.pair = pair && open ? "open" : pair || problem ? "line" : "none";
    const [first] = pair?.figures ?? [];
    write(this.line, first ? `Before and after: ${figureText(first)}` : "");
    write(this.problem, problem);
    this.soon();
  }

  showUntil(now) {
    this.now = now;
    this.soon();
  }

  /** @override */
  draw(width, height) {
    if (!this.pair) return false;
    this.pen.begin(width, height);
    drawPair(this.pen, width, height, this.pair, palette(), this.now);
    return true;
  }

  /** @override */
  words() {
    return this.pair ? describePair(this.pair) : "";
  }
}
