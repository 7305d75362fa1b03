/* Shows when the page is no longer current because the server or its engine does not answer. This is checked at each
 * answer and four times a second. Emits "connection" when it changes. */
import { make, write } from "./dom.js";
import { emit, on } from "./events.js";
import { format } from "./format.js";
import { given } from "./given.js";
import { lock, SENDING } from "./lock.js";
import { poll } from "./poll.js";
import { time } from "./time.js";

const LOST_MS = 2500, CHECK_MS = 250;
const NEEDS_AN_ANSWER = [SENDING, ".rp-lane header", ".rp-hint", ".rp-edit", ".rp-needs-server", ".rp-demo"].join();

/** `server`: no poll has been answered for a while; `engine`: the engine has ended; `slow`: it is overdue, in the
 * server's words. `stopped`: figures, the clock and the lanes stand still, and whatever would need an answer is
 * locked.
 * @typedef {{kind: "server" | "engine" | "slow", words: string, stopped: boolean}} Trouble */

export const connection = {
  /** @type {Trouble | null} */
  trouble: null,
};
let bar = null, message = null, age = null;

/** @returns {Trouble | null} */
function findTrouble() {
  if (given.recording || poll.held || poll.starting?.failed) return null;
  if (poll.asked !== null && performance.now() - poll.asked > LOST_MS) {
    return { kind: "server", words: "The server does not answer.", stopped: true };
  }
  if (poll.alive === false) return { kind: "engine", words: "The engine has stopped: restart it.", stopped: true };
  return poll.health ? { kind: "slow", words: poll.health, stopped: false } : null;
}

function check() {
  const before = connection.trouble, now = findTrouble();
  if ((before && before.words) !== (now && now.words)) {
    connection.trouble = now;
    const stopped = Boolean(now && now.stopped);
    document.body.classList.toggle("rp-stopped", stopped);
    time.stop(stopped);
    lock("connection", stopped ? now.words : null, NEEDS_AN_ANSWER);
    if (now && now.kind === "server") poll.showState("lost", "reconnecting");
    show();
    emit("connection", now);
  }
  if (!now || now.kind !== "server") return;
  write(age, poll.heard ? `Last seen ${format.duration(performance.now() - poll.heard)} ago.` : "Not seen yet.");
}

// ---- the banner -------------------------------------------------------------------------------------------
function build() {
  message = make("span", { role: "alert" });
  age = make("span", "rp-age"); // outside of the alert: it changes every second
  const off = make("span", "rp-off", "Sending and settings are disabled until then.");
  bar = make("section", { id: "rp-banner", "aria-label": "Connection" }, make("b", "", "!"), message, age, off);
  document.body.append(bar);
}

function show() {
  if (!bar) build();
  const { trouble } = connection;
  bar.hidden = !trouble;
  document.body.classList.toggle("rp-bannered", Boolean(trouble));
  if (!trouble) return;
  bar.dataset.kind = trouble.kind;
  write(message, trouble.kind === "server" ? `${trouble.words} Reconnecting.` : trouble.words);
  age.hidden = trouble.kind !== "server";
  bar.lastElementChild.hidden = !trouble.stopped;
}

on("heard", check);
on("replay", check);
setInterval(check, CHECK_MS);
