/* A question and its answer in a lane, and the position of each token in the answer's text.
 *
 * Late tokens are tinted, in steps: by how much longer than usual they took, of which the server tells. Neighbours that
 * look the same share one text node, so usual tokens cost nothing. Model text enters the page only as text nodes. */
import { make, write } from "../shared/dom.js";
import { format } from "../shared/format.js";
import { firstWhere } from "../shared/numbers.js";
import { slowed } from "../shared/past.js";
import { cachedButton } from "../shared/popover.js";
import { store } from "../shared/store.js";
import { partsOf } from "./bold.js";
import { thinkingPart, Thought } from "./thought.js";

const LEAST = 1.5, STRONGEST = 7; // times the usual gap: where the tint is weakest and strongest
const LEAST_TINT = 2, MOST_TINT = 30, LEVELS = 8; // tints in percent, and the number of shades
const NO_ROLE = "The chat template has no system role, so the system prompt is placed before the first question.";
/** States in which an answer no longer changes. */
export const OVER = new Set(["done", "stopped", "error"]);

/** @import { TurnNews } from "../shared/types.js" */

export class Turn {
  constructor(rid) {
    this.rid = rid;
    this.left = make("p", "rp-left");
    this.cached = cachedButton(rid, { hidden: true });
    this.asked = document.createTextNode("");
    this.question = make("div", "rp-q", this.cached, this.asked);
    this.answer = make("div", "rp-a");
    this.error = make("p", "rp-error");
    this.root = make("div", "rp-turn", this.left, this.question, this.answer, this.error);
    this.root.dataset.rid = rid;
    this.clear();
    this.state = "queued";
    this.begun = false; // whether the prompt has begun the thinking part
    this.marks = { chosen: -1, cursor: -1 };
  }

  clear() {
    this.text = "";
    this.ends = []; // end of each token in this.text
    this.times = []; // ms of the engine's clock
    this.pieces = []; // {start, end, level, mark, node}
    this.drawn = 0; // number of tokens in pieces
    this.late = new Map(); // the usual gap in ms, by when a late token came in hundredths of a ms
    this.last = 0; // hundredths of a millisecond
    /** @type {import("./thought.js").Part | null} */
    this.part = null;
    this.thought = null;
    this.parts = partsOf("", true);
    this.answer.replaceChildren();
  }

  /** Take a poll's news about this turn; only the end of the answer is touched. @param {TurnNews} news */
  take(news) {
    if (news.tokens_from === 0 && news.text_from === 0) this.clear();
    this.text += news.text;
    let end = this.ends.length ? this.ends[this.ends.length - 1] : 0;
    news.widths.forEach((width, i) => {
      this.ends.push(end += width);
      this.times.push((this.last += news.times[i]) / 100);
    });
    if (news.question !== this.asked.data) this.asked.data = news.question;
    this.state = news.state;
    this.begun = Boolean(news.thinking);
    this.think();
    this.embolden();
    this.takeLate(news.late);
    this.draw();
    this.say(news);
  }

  say(news) {
    const oldest = news.left_out === 1 ? "The oldest turn was" : `The oldest ${news.left_out} turns were`;
    const model = store.info?.model, other = news.model && model && news.model !== model;
    const notes = [
      other && `Answered by ${news.model}. ${model} is not shown this turn.`,
      news.left_out && `${oldest} left out: no room.`,
      news.no_role && NO_ROLE,
    ];
    write(this.left, notes.filter(Boolean).join(" "));
    write(this.error, news.error || "");
    const { count } = format;
    // Another server says at the end how long the prompt was, and perhaps never how much of it was cached.
    this.cached.hidden = !news.prompt || news.state === "queued" || news.state === "prefill" ||
      Boolean(store.absent.cached_tokens);
    if (!this.cached.hidden) write(this.cached, `${count(news.cached)} of ${count(news.prompt)} cached`);
  }

  // ---- late tokens ----------------------------------------------------------------------------------------
  gap(k) {
    return k > 0 ? this.times[k] - this.times[k - 1] : NaN;
  }

  /** The slow motion since `ms` before its first token, see `slowed`. */
  slowed(ms) {
    return this.times.length ? slowed(this.times[0] - ms, this.times[this.times.length - 1]) : "";
  }

  /* It may have been drawn before it was known to be late. @param {[number, number][]} late */
  takeLate(late) {
    for (const [t, usual] of late) this.late.set(Math.round(100 * t), usual);
    const first = Math.min(this.drawn, ...late.map(([t]) => this.at(t)).filter((k) => k >= 0));
    if (first < this.drawn) this.eraseFrom(first);
  }

  /** The gap that was usual when token k came, if it was late. */
  usual(k) {
    return this.gap(k) > 0 ? this.late.get(Math.round(100 * this.times[k])) : undefined;
  }

  /* 0 is not late. */
  level(k) {
    const usual = this.usual(k);
    if (!usual) return 0;
    const far = (this.gap(k) / usual - LEAST) / (STRONGEST - LEAST);
    return 1 + Math.round((LEVELS - 1) * Math.min(1, Math.max(0, far)));
  }

  // ---- text -----------------------------------------------------------------------------------------------
  start(k) {
    return k > 0 ? this.ends[k - 1] : 0;
  }

  draw() {
    for (; this.drawn < this.ends.length; this.drawn++) {
      const k = this.drawn, start = this.start(k), end = this.ends[k];
      if (start < end) this.append(start, end, k);
    }
    const shown = this.pieces.length ? this.pieces[this.pieces.length - 1].end : 0;
    const length = this.text.length; // its end may have added some
    if (length > shown) this.append(shown, length, Math.max(0, this.ends.length - 1));
  }

  /* Add text; tags are not shown, and the text between them goes into an element of its own. */
  append(start, end, k) {
    if (!this.part) return this.appendTo(this.answer, start, end, k);
    const { start: from, end: to, after } = this.part;
    if (Math.max(start, from) < Math.min(end, to)) {
      this.appendTo(this.thought.body, Math.max(start, from), Math.min(end, to), k);
    }
    if (end > after) this.appendTo(this.answer, Math.max(start, after), end, k);
  }

  appendTo(place, start, end, k) {
    for (const part of this.parts) {
      this.appendPiece(place, Math.max(start, part.start), Math.min(end, part.end), k, part.look);
    }
  }

  appendPiece(place, start, end, k, look) {
    if (start >= end) return;
    const level = this.level(k), mark = this.markOf(k), last = this.pieces[this.pieces.length - 1];
    const alike = last && last.place === place && last.level === level && last.mark === mark &&
      last.end === start;
    if (alike && (!mark || last.first === k)) {
      last.node.appendData(this.text.slice(start, end));
      last.end = end;
      return;
    }
    const node = document.createTextNode(this.text.slice(start, end));
    this.pieces.push({ start, end, level, mark, look, first: k, node, place });
    if (!level && !mark && !look) return place.append(node);
    const span = make("span", [level ? "rp-slow" : "", mark, look].filter(Boolean).join(" "), node);
    const tint = LEAST_TINT + Math.round(((MOST_TINT - LEAST_TINT) * (level - 1)) / (LEVELS - 1));
    if (level) span.style.setProperty("--tint", `${tint}%`);
    place.append(span);
  }

  /* Take back what is drawn of token k and those after it. */
  eraseFrom(k) {
    const from = this.start(k);
    while (this.pieces.length && this.pieces[this.pieces.length - 1].end > from) {
      const piece = this.pieces[this.pieces.length - 1], { node, start, place } = piece;
      if (start < from) {
        node.data = this.text.slice(start, from);
        piece.end = from;
        break;
      }
      this.pieces.pop();
      (node.parentNode === place ? node : node.parentNode).remove();
    }
    this.drawn = k;
  }

  redraw() {
    const root = this.thought?.root;
    for (const node of [...this.answer.childNodes]) if (node !== root) node.remove(); // its button may be being pressed
    if (root && !this.answer.contains(root)) this.answer.append(root);
    this.thought?.body.replaceChildren();
    this.pieces = [];
    this.drawn = 0;
    this.draw();
  }

  /* Find what is bold; what has been drawn otherwise is drawn again. */
  embolden() {
    const before = this.parts, parts = this.parts = partsOf(this.text, !OVER.has(this.state));
    if (before.length !== parts.length || before.some(({ start }, i) => start !== parts[i].start)) this.redraw();
  }

  // ---- thinking -------------------------------------------------------------------------------------------
  /* Find the part in which the model thinks; once it is closed, it folds. */
  think() {
    const before = this.part, part = this.part = thinkingPart(this.text, this.begun);
    const empty = !part || (part.closed && part.start >= part.end);
    if (empty) this.thought = null;
    else this.thought = this.thought || new Thought(() => this.thought.opened || this.mark(-1, "cursor"));
    const closes = part && part.closed && !(before && before.closed);
    if (closes && this.thought) this.thought.open(false);
    if (closes || !part !== !before || (part && before && part.start !== before.start)) this.redraw();
    if (!this.thought) return;
    const [first, last] = [part.start, part.end - 1].map((char) => this.tokenOf(char));
    const ms = last < 0 ? 0 : this.times[last] - this.times[0];
    this.thought.say(part, OVER.has(this.state), ms, last < 0 ? 0 : last - first + 1);
  }

  /** The answer without the thinking part, or that part if there is nothing else. */
  get said() {
    return this.text.slice(this.part?.after ?? 0) || this.text;
  }

  /* Whether token k is visible: it has text, which is in neither a tag, a mark nor a folded part. */
  seen(k) {
    const start = this.start(k), end = this.ends[k];
    if (!this.parts.some((part) => Math.max(start, part.start) < Math.min(end, part.end))) return false;
    return !this.part || end > this.part.after || (this.thought?.opened && this.within(k));
  }

  within(k) {
    return Boolean(this.part) && this.ends[k] > this.part.start && this.start(k) < this.part.end;
  }

  // ---- tokens ---------------------------------------------------------------------------------------------
  markOf(k) {
    return this.marks.chosen === k ? "rp-chosen" : this.marks.cursor === k ? "rp-cursor" : "";
  }

  /** Outline token k ("chosen", "cursor"), -1 for none. */
  mark(k, name) {
    if (this.marks[name] === k) return;
    this.marks[name] = k;
    if (k >= 0 && this.thought && this.within(k)) this.thought.open(true);
    this.redraw();
  }

  /** The element of a marked token, if it has any text. */
  marked(name) {
    return this.answer.querySelector(`.rp-${name}`);
  }

  /** The token published at this time of the engine's clock, or -1. */
  at(t) {
    const k = firstWhere(0, this.times.length, (i) => this.times[i] >= t - 0.02);
    return Math.abs(this.times[k] - t) < 0.02 ? k : -1;
  }

  /** The token under a point of the window, or -1. */
  tokenAt(x, y) {
    const caret = caretAt(x, y), piece = caret && this.pieces.find((one) => one.node === caret.node);
    if (!piece) return -1;
    // The caret is between two characters; the point is on one of them, or beside the text.
    const range = document.createRange();
    for (const i of [caret.offset, caret.offset - 1]) {
      if (i < 0 || i >= piece.node.length) continue;
      range.setStart(piece.node, i);
      range.setEnd(piece.node, i + 1);
      for (const box of range.getClientRects()) {
        if (x >= box.left && x <= box.right && y >= box.top && y <= box.bottom) return this.tokenOf(piece.start + i);
      }
    }
    return -1;
  }

  /* The token to which a character of the text belongs. */
  tokenOf(char) {
    return Math.min(this.ends.length - 1, firstWhere(0, this.ends.length, (i) => this.ends[i] > char));
  }

  /** The next token with text from k on in a direction, or -1. */
  next(k, by) {
    for (let i = k + by; i >= 0 && i < this.ends.length; i += by) if (this.seen(i)) return i;
    return -1;
  }
}

/** {node, offset} of the text under a point, or null. Browsers have two names for this function. */
function caretAt(x, y) {
  if (document.caretPositionFromPoint) {
    const caret = document.caretPositionFromPoint(x, y);
    return caret && { node: caret.offsetNode, offset: caret.offset };
  }
  const range = document.caretRangeFromPoint && document.caretRangeFromPoint(x, y);
  return range && { node: range.startContainer, offset: range.startOffset };
}
