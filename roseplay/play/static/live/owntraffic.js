/* The user's own traffic: a file is chosen here, or dropped on the row, and the server plays it. The page keeps the
 * file, so that it can be played again; the tab's polls report the progress. */
import { ask, sentence } from "../shared/ask.js";
import { set, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { poll } from "../shared/poll.js";
import { tab } from "../shared/tab.js";
import { takeFiles } from "../shared/takefiles.js";

/** @import { Played, TrafficFile } from "../shared/types.js" */

const LARGEST = 8 * 2 ** 20, MOST_NAME = 80; // the server's limits

let row = null;
/** What was read of the chosen file, and the file. @type {(TrafficFile & {file: File}) | null} */
let chosen = null;
/** The newest figures. @type {Played | null} */
let figures = null;
let shows = "chosen"; // or "played": what the row shows while nothing is playing
let refused = "", underWay = 0, heard = 0;
let line = Promise.resolve(); // the queue of requests to the server, one after the other
/** @type {boolean | null} whether it should play, until a poll after the server's answer has come */
let wanted = null;

const isOn = () => wanted ?? Boolean(figures && figures.on);

// ---- asking -----------------------------------------------------------------------------------------------
/** Queue an action; its errors are shown in the row. */
function attempt(does) {
  underWay++;
  refused = "";
  draw();
  line = line.then(does).catch((error) => {
    refused = error.message;
    wanted = null;
  }).then(() => {
    underWay--;
    heard = 0;
    draw();
  });
}

/** @param {File} file */
const choose = (file) =>
  attempt(async () => {
    const name = file.name.slice(-MOST_NAME);
    try {
      if (file.size > LARGEST) throw new Error("It is larger than 8 MiB: use a part of it.");
      chosen = { ...await ask("/traffic/check", { query: { name }, body: file }), file };
      shows = "chosen";
    } catch (error) {
      throw new Error(`${name}: ${error.message}`);
    }
  });

function play() {
  wanted = true;
  attempt(async () => {
    figures = await ask("/traffic/play", { query: { name: chosen.name, tab }, body: chosen.file });
    shows = "played";
  });
}

function stop() {
  wanted = false;
  attempt(() => ask("/traffic/stop", { query: { tab }, post: true }));
}

// ---- following --------------------------------------------------------------------------------------------
/** @param {Played | null} now */
function take(now) {
  if (!row || underWay) return;
  // A poll that was in progress when the server answered may still report the previous state.
  if (++heard < 2) return;
  wanted = null;
  figures = now;
  if (now && now.on) shows = "played";
  draw();
}

// ---- showing ----------------------------------------------------------------------------------------------
/** How far it is, or what is in the file. */
function state() {
  if (figures && (isOn() || shows === "played")) {
    return [figures.name, `${format.count(figures.sent)} of ${format.count(figures.requests)} sent`];
  }
  return chosen ? [chosen.name, `${format.many(chosen.requests, "request")}, ${length(chosen.span_s)}`] : ["", ""];
}

const length = (s) => `${s < 10 ? Math.round(10 * s) / 10 : format.count(Math.round(s))} s`;

const stopText = () => !isOn() && shows === "played" && figures?.stopped ? sentence(`stopped: ${figures.stopped}`) : "";

function draw() {
  const part = (selector) => row.querySelector(selector), [name, words] = state(), player = part(".rp-play");
  part(".rp-file").hidden = !name && !words;
  write(part("b"), name);
  part("b").title = name;
  write(part(".rp-file span"), words);
  write(player, isOn() ? "Stop" : "Play");
  player.setAttribute("aria-label", isOn() ? "Stop your own traffic" : `Play ${name || "your own traffic"}`);
  player.hidden = !isOn() && !chosen;
  row.classList.toggle("rp-playing", isOn());
  row.setAttribute("aria-busy", String(underWay > 0));
  write(part(".rp-refused"), refused || stopText());
}

on("own", (news) => take(news.file || null));
on("reset", () => {
  if (!row || !poll.held) return;
  figures = wanted = null; // a recording is shown: nothing is sent
  draw();
});

/** @param {HTMLElement} element in the row */
export function mount(element) {
  row = /** @type {HTMLElement} */ (element.closest("#rp-own"));
  const part = (selector) => row.querySelector(selector);
  set(row, { role: "group", "aria-label": "Your own traffic" });
  takeFiles(part(".rp-choose"), part("input"), row, choose);
  part(".rp-choose").disabled = false; // it could open nothing before
  part(".rp-play").onclick = () => (isOn() ? stop() : play());
  draw();
}
