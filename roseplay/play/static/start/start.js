/* Shown while no engine is live: the start's progress in the strip, and its stages in place of the timeline. Controls
 * that need the engine are disabled meanwhile. A failed start stays visible, with a command to try; one that replaces
 * another model can be cancelled. */
import { make, makeButton, set, svg, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { lock } from "../shared/lock.js";
import { makeBar } from "../shared/message.js";
import { poll } from "../shared/poll.js";
import { keep, ofTab, stored } from "../shared/storage.js";
import { cancelLoad } from "../live/modelchip.js";

/** @import { Delta, Start, StartStage } from "../shared/types.js" */

const INERT = "#rp-rail, #rp-say, #rp-sampling";
const done = () => svg(12, 12, ["path", { d: "M2 6.5l3 3 5-7", fill: "none", stroke: "currentColor" }]);

/** @type {Strip | null} */
let strip = null;
/** @type {StageList | null} */
let list = null;

on("start", (/** @type {Start | null} */ start) => {
  document.body.classList.toggle("rp-starting", Boolean(start));
  document.querySelectorAll(INERT).forEach((/** @type {HTMLElement} */ part) => (part.inert = Boolean(start)));
  lock("start", start && start.head, INERT); // keys press buttons too
  if (!start) {
    strip?.element.remove();
    list?.element.remove();
    strip = list = null;
    return;
  }
  const strips = document.querySelector("#rp-story .rp-strip"), steps = document.querySelector("#rp-steps .rp-plot");
  strip ??= new Strip();
  list ??= new StageList();
  if (strips && !strip.element.isConnected) strips.append(strip.element); // Gradio mounts its parts one by one
  if (steps && !list.element.isConnected) steps.append(list.element);
  strip.show(start);
  list.show(start);
});

/** The sentence above the bar of the running stage. */
class Strip {
  constructor() {
    this.head = make("b");
    this.more = make("span");
    this.bar = new Bar({ role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100 });
    this.heard = make("span", { className: "rp-said", role: "status" }); // announces each stage once, not each count
    const words = make("p", "", this.head, " ", this.more);
    this.cancel = makeButton("Cancel", { className: "rp-cancel", hidden: true, onclick: () => this.giveUp() });
    this.element = make("div", "rp-start", words, this.bar.element, this.heard, this.cancel);
  }

  async giveUp() {
    this.cancel.disabled = true;
    await cancelLoad().catch(() => null); // it was over
    this.cancel.disabled = false;
  }

  /** @param {Start} start */
  show({ model, failed, stage, stages, head, more, share, back }) {
    this.cancel.hidden = !back;
    this.cancel.title = `Return to ${back}`;
    this.element.classList.toggle("rp-failed", Boolean(failed));
    write(this.head, head);
    write(this.more, more);
    this.bar.show(share);
    const number = stages.findIndex((one) => one.title === stage), now = stages[number];
    set(this.bar.element, { "aria-label": stage || "Start", "aria-valuetext": now ? now.words : more });
    if (failed) write(this.heard, `${model} could not be started. ${failed.message}`);
    else if (now) write(this.heard, `${model} is loading. ${stage}, stage ${number + 1} of ${stages.length}.`);
  }
}

/** A bar 6 pixels high; empty while the progress is unknown. */
class Bar {
  /** @param {Record<string, any>} [attributes] */
  constructor(attributes = { "aria-hidden": "true" }) {
    this.fill = make("i");
    this.element = make("div", { className: "rp-start-bar", ...attributes }, this.fill);
  }

  /** @param {number | null} share from 0 to 1 */
  show(share) {
    this.fill.style.width = `${100 * (share || 0)}%`;
    if (this.element.getAttribute("role") !== "progressbar") return;
    this.element.ariaValueNow = share === null ? null : String(Math.round(100 * share));
  }
}

/** All stages, and the command to try if one failed. */
class StageList {
  constructor() {
    this.title = make("b");
    this.hint = make("span");
    /** @type {StageRow[]} */
    this.rows = [];
    this.list = make("ol");
    this.message = make("span");
    this.command = make("code");
    this.advice = make("span", "", " Try ", this.command);
    this.failure = make("p", { hidden: true }, this.message, this.advice);
    this.note = make("p", { hidden: true });
    this.element = make("section", { className: "rp-start-list", "aria-label": "Stages of the start" });
    this.element.append(make("h4", "", this.title, this.hint), this.list, this.note, this.failure);
  }

  /** @param {Start} start */
  show({ stages, failed, note }) {
    if (this.rows.length !== stages.length) {
      this.rows = stages.map((_, i) => new StageRow(i + 1));
      this.list.replaceChildren(...this.rows.map((row) => row.element));
    }
    stages.forEach((stage, i) => this.rows[i].show(stage));
    write(this.title, failed ? "Not started" : "Starting");
    const ends = failed?.command ? "the server exits; start it again" : "choose a model in the header";
    write(this.hint, failed ? ends : "the page goes live automatically");
    this.note.hidden = !note;
    write(this.note, note && note.replace(/\.?$/, "."));
    this.failure.hidden = !failed;
    if (!failed) return;
    write(this.message, failed.message.replace(/\.?$/, "."));
    this.advice.hidden = !failed.command;
    write(this.command, failed.command);
  }
}

class StageRow {
  constructor(number) {
    this.number = String(number);
    this.mark = make("span");
    this.title = make("b");
    this.words = make("span");
    this.bar = new Bar();
    this.seconds = make("small");
    this.element = make("li", "", this.mark, this.title, this.words, this.bar.element, this.seconds);
  }

  /** @param {StartStage} stage */
  show({ title, words, state, share, seconds }) {
    if (this.element.dataset.state !== state) {
      this.element.dataset.state = state;
      this.mark.replaceChildren(state === "done" ? done() : this.number);
    }
    write(this.title, title);
    write(this.words, words);
    this.bar.show(share);
    write(this.seconds, seconds === null ? "" : `${seconds.toFixed(1)} s`);
  }
}

// ---- afterwards -------------------------------------------------------------------------------------------
/* A line over the foot of the page that stays until it is dismissed: why a model could not be loaded. */
const DISMISSED = "roseplay-notice"; // stores the start to which the dismissed line belongs
let notice = null;
/** @type {string | null} */
let boot = null;

function dismiss() {
  keep(DISMISSED, boot, ofTab);
  showNotice(null);
}

/** @param {string | null} text */
function showNotice(text) {
  if (!notice && !text) return;
  notice ??= makeBar("rp-notice", "Notice", dismiss, make("b", "", "!"));
  notice.hidden = !text;
  document.body.classList.toggle("rp-noticed", Boolean(text));
  write(notice.querySelector("span"), text || "");
}

on("frame", (/** @type {Delta} */ delta) => {
  if (poll.held) return; // a recording is shown
  boot = delta.boot_id;
  const text = delta.notice && stored(DISMISSED, ofTab) !== boot ? delta.notice : null;
  if (text !== (notice?.querySelector("span").textContent || null)) showNotice(text);
});
on("start", (start) => start && showNotice(null));
