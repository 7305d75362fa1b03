/* One lane: a chat, its buttons and figures. It keeps its turns (see turn.js) in order, and shows the progress of the
 * newest one. */
import { connection } from "../shared/connection.js";
import { crossIcon, make, makeButton, write } from "../shared/dom.js";
import { emit } from "../shared/events.js";
import { format } from "../shared/format.js";
import { keep, ofTab, stored } from "../shared/storage.js";
import { store } from "../shared/store.js";
import { clock } from "../shared/time.js";
import { stateText, tokensText } from "./lanestate.js";
import { outlineIn, watch } from "./picking.js";
import { Sticking } from "./sticking.js";
import { LaneTools } from "./tools.js";
import { OVER, Turn } from "./turn.js";
import { suggestions } from "./suggestions.js";

/** @import { LaneNews } from "../shared/types.js" */

/** What a lane's buttons do; lanes are counted from 1.
 * @typedef {object} LaneActs
 * @property {(lane: number, prompt: string) => void} ask
 * @property {(lane: number, prompt: string) => void} edit
 * @property {(lane: number) => void} again
 * @property {() => void} newChat in an empty lane
 * @property {(lane: number) => void} clear
 * @property {(lane: Lane) => void} takeBack the prompt that it would be asked last
 * @property {(lane: number) => void} halt
 * @property {(words: string) => void} say tell it to screen readers */

const HUES = 8, FIGURES_MS = 250, KEY = "roseplay-next-";
const FROZEN = 4, FROZEN_MS = 250, THAWED_MS = 1500; // how many usual gaps is long, at least, and how long it is told

export class Lane {
  /** @param {number} index from 0 @param {LaneActs} acts */
  constructor(index, acts) {
    this.index = index;
    this.number = index + 1;
    this.acts = acts;
    /** @type {Turn[]} */
    this.turns = [];
    /** @type {LaneNews | null} */
    this.news = null;
    this.awaited = false; // whether a prompt was sent of which there is no news yet
    /** Prompts to ask when its answer has ended, kept over a reload. @type {string[]} */
    this.next = JSON.parse(stored(KEY + this.number, ofTab) ?? "[]");
    this.have = ""; // the stamp of what it has, for the next poll
    this.shown = 0; // when its figures were last shown
    this.at = 0; // when its news arrived
    this.due = false; // whether its figures must be shown again
    this.pause = { last: null, ms: 0, told: 0 }; // since its newest token; the latest long one, and until when to tell
    this.build();
    this.tools = new LaneTools(this, acts);
    this.stop.before(this.tools.box);
    this.hint = make("span", "rp-hint");
    this.suggest();
    this.root.onmouseenter = () => this.news && emit("hover", this.news.rid);
    this.root.onmouseleave = () => emit("hover", null);
    this.end = new Sticking(this.text);
    watch(this);
    this.tools.show();
    this.plan(this.next);
  }

  build() {
    const { number } = this, hue = `var(--rp-c${this.index % HUES})`;
    this.title = make("h4");
    const stop = {
      title: "Stop this lane",
      "aria-label": `Stop lane ${number}`,
      onclick: () => this.acts.halt(number),
    };
    this.stop = makeButton(crossIcon(), { className: "rp-halt", hidden: true, ...stop });
    this.state = make("span", "rp-state");
    this.rate = make("span", "rp-rate");
    this.ttft = make("span", { className: "rp-ttft", title: "Time to first token" });
    this.itl = make("span", { className: "rp-itl", title: "Inter-token latency: median of this answer" });
    this.frozen = make("b", "rp-frozen");
    this.stall = make("p", { className: "rp-stall", hidden: true });
    this.text = make("div", { className: "rp-text", role: "log", "aria-live": "off" });
    this.waits = makeButton("", {
      className: "rp-next",
      title: "Asked when this answer has ended. Click to take the last one back.",
      onclick: () => this.acts.takeBack(this),
    });
    this.bars = [make("i"), make("i")];
    this.words = make("span");
    this.root = make(
      "section",
      { className: "rp-lane", id: `rp-lane-${number}`, tabIndex: -1, "aria-label": `Lane ${number}` },
      make("header", "", make("b", "", String(number)), this.title, this.stop),
      make("div", "rp-meta", this.state, this.rate, this.ttft, this.itl, this.frozen),
      this.text,
      this.stall,
      this.waits,
      make("div", "rp-prefill", make("div", "", ...this.bars), this.words),
    );

    this.dot = make("i");
    for (const element of [this.root, this.dot]) element.style.setProperty("--hue", hue);
  }

  /** Suggest questions that suit the model in an empty lane. */
  suggest() {
    const buttons = !store.bootId
      ? []
      : suggestions(this.index).map((question) =>
        makeButton(question, { title: "Ask this in this lane", onclick: () => this.acts.ask(this.number, question) })
      );
    const words = this.index === 0 && buttons.length ? ["Write a prompt, or try"] : [];
    this.hint.replaceChildren(...words, ...buttons);
    if (!this.turns.length) this.text.replaceChildren(this.hint);
  }

  // ---- filling --------------------------------------------------------------------------------------------
  /** @param {LaneNews} news */
  take(news) {
    const before = this.news, other = !before || before.rid !== news.rid;
    this.news = news;
    this.have = news.have;
    this.at = performance.now();
    if (other) [this.pause.last, this.awaited] = [null, false];
    const changed = other || before.state !== news.state;
    if (changed) {
      this.root.dataset.state = news.state || "";
      this.stop.hidden = !news.state || OVER.has(news.state) || news.state === "stopping";
      write(this.title, news.title);
      this.title.title = news.title;
    }
    this.fill(news, other);
    if (changed && !other && OVER.has(news.state)) this.acts.say(`Lane ${this.number}: ${stateText(news)}`);
    this.due = true;
    if (changed) this.shown = 0; // a new state is shown at once, figures only four times a second
  }

  /** Whether it is answering, or about to. */
  get busy() {
    return this.awaited || Boolean(this.news?.state && !OVER.has(this.news.state));
  }

  /** Set what is asked next. @param {string[]} prompts */
  plan(prompts) {
    this.next = prompts;
    keep(KEY + this.number, JSON.stringify(prompts), ofTab);
    write(this.waits, prompts.length ? `Next: ${prompts.join(" · ")}` : "");
  }

  fill(news, other) {
    for (const one of news.turns) {
      let turn = this.turns.find((known) => known.rid === one.rid);
      if (!turn) this.turns.push(turn = new Turn(one.rid));
      turn.take(one);
    }
    if (news.order) this.arrange(news.order);
    this.end.follow(other);
  }

  arrange(order) {
    const byRid = new Map(this.turns.map((turn) => [turn.rid, turn]));
    this.turns = order.map((rid) => byRid.get(rid)).filter(Boolean);
    for (const turn of byRid.values()) if (!this.turns.includes(turn)) turn.root.remove();
    if (!this.turns.length) this.text.replaceChildren(this.hint);
    else this.hint.remove();
    for (const turn of this.turns) {
      if (turn.root.parentNode === this.text) continue;
      this.text.append(turn.root); // turns come in their order
      outlineIn(turn);
    }
    this.tools.show();
  }

  /** Say why an unfinished answer ended: a restarted engine does not know it. */
  loseAnswer(error = "The server was restarted while this answer was in progress.") {
    this.have = "";
    this.awaited = false;
    const last = this.turns[this.turns.length - 1];
    if (!last || !this.news.state || OVER.has(this.news.state)) return;
    const question = last.asked.data;
    const nothing = { text: "", text_from: 1, tokens_from: 1, widths: [], times: [], late: [], left_out: 0 };
    last.take({ ...nothing, rid: last.rid, question, state: "error", error });
    this.take({ ...this.news, turns: [], order: null, state: "error", have: "", waiting_ms: null, error });
  }

  // ---- figures --------------------------------------------------------------------------------------------
  /** Show the figures that are due, at once or as often as people can read them. */
  figures(now, atOnce = false) {
    if (this.news) this.showPause(now);
    if (!this.news || !(atOnce || (this.due && now - this.shown >= FIGURES_MS))) return;
    const { news } = this;
    this.due = news.ttft_ms == null && news.waiting_ms != null; // its clock runs on between polls that bring nothing
    this.shown = now;
    this.tools.show();
    this.showStall();
    if (this.root.dataset.stalled === "stopped") return;
    write(this.state, stateText(news));
    this.state.title = news.state ? tokensText(news) : "";
    const decoding = news.state === "decode" && news.tok_s != null;
    write(this.rate, decoding ? `${news.tok_s < 9.5 ? news.tok_s.toFixed(1) : format.count(news.tok_s)} tok/s` : "");
    const waited = news.waiting_ms == null ? "" : `waiting ${format.seconds(news.waiting_ms + now - this.at)}`;
    const slow = this.turns.at(-1)?.slowed(news.ttft_ms) ?? "", { itl_p50: gap } = news;
    const [first, later] = gap == null ? [slow, ""] : ["", slow]; // the last figure has the mark
    write(this.ttft, news.ttft_ms != null ? `TTFT ${format.seconds(news.ttft_ms)}${first}` : waited);
    const words = gap == null ? "" : `ITL ${gap < 9.95 ? `${gap.toFixed(1)} ms` : format.seconds(gap)}${later}`;
    write(this.itl, words);
    this.itl.classList.toggle("rp-slowed", later !== "");
    if (news.state === "prefill" && news.target) this.showPrefill(news);
  }

  /* While its reader gets no token for unusually long, and shortly after, say for how long. */
  showPause(now) {
    const { pause, news } = this, last = news.state === "decode" ? store.requests.get(news.rid)?.last ?? null : null;
    const long = Math.max(FROZEN_MS, FROZEN * (news.itl_p50 ?? Infinity));
    const since = last === null ? 0 : (last === pause.last ? clock() : last) - (pause.last ?? last);
    if (since > long) Object.assign(pause, { ms: since, told: now + THAWED_MS });
    pause.last = last;
    const words = last !== null && now < pause.told ? `frozen ${format.seconds(pause.ms)}` : "";
    write(this.frozen, words);
    this.itl.hidden = words !== "";
  }

  /** @param {LaneNews} news */
  showPrefill({ cached, computed, target }) {
    const fresh = Math.max(0, computed - cached), { count } = format;
    [cached, fresh].forEach((part, i) => (this.bars[i].style.width = `${(100 * part) / target}%`));
    write(this.words, `${count(cached)} cached + ${count(fresh)} computed, ${count(target - computed)} to go`);
  }

  /* Show what keeps an unfinished answer from going on, if that is known. */
  showStall() {
    const underWay = this.news.state && !OVER.has(this.news.state), trouble = underWay ? connection.trouble : null;
    this.stall.hidden = !trouble;
    write(this.stall, trouble ? trouble.words : "");
    this.root.dataset.stalled = trouble ? (trouble.stopped ? "stopped" : "slow") : "";
    if (!trouble || !trouble.stopped) return;
    write(this.state, "no news");
    write(this.rate, "");
  }
}
