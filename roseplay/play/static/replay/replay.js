/* Plays a recorded run into the store as the poller would, at the recording's own speed or another. Emits "replay" when
 * its state changes other than by the passing of time. */
import { ask } from "../shared/ask.js";
import { emit, on } from "../shared/events.js";
import { given } from "../shared/given.js";
import { poll } from "../shared/poll.js";
import { apply } from "../shared/reduce.js";
import { store } from "../shared/store.js";
import { clock, time } from "../shared/time.js";
import { beginLanes, clearLanes, laneNews } from "./lanes.js";
import { Recording } from "./recording.js";

const TICK_MS = 50;
const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];

export const replay = {
  on: false,
  /** @type {Recording | null} */
  recording: null,
  playing: false,
  speed: 1,
  speeds: SPEEDS,
  at,
  play,
  pause,
  seek,
  pace,
  live,
  served,
  load,
  demo,
};
let fed = 0, from = 0, since = 0, serial = 0, timer = 0;

// ---- time -------------------------------------------------------------------------------------------------
/** ms from the recording's start, however fast it runs. */
function at() {
  if (!replay.recording) return 0;
  const ran = replay.playing ? (performance.now() - since) * replay.speed : 0;
  return Math.min(replay.recording.length, from + ran);
}

/** Count the position from its present value, so that speed or state can change. */
function rebase() {
  from = at();
  since = performance.now();
}

function play() {
  if (!replay.on || replay.playing) return;
  if (at() >= replay.recording.length) seek(0);
  rebase();
  replay.playing = true;
  emit("replay");
}

function pause() {
  rebase();
  replay.playing = false;
  emit("replay");
}

function pace(speed) {
  rebase();
  replay.speed = speed;
  emit("replay");
}

function seek(ms) {
  if (!replay.on) return;
  rebase();
  const to = Math.max(0, Math.min(replay.recording.length, ms));
  if (to < from) begin();
  from = to;
  feed();
  emit("replay");
}

// ---- feeding ----------------------------------------------------------------------------------------------
/* Start over: the store forgets everything, and takes the recording's beginning. */
function begin() {
  const { header } = replay.recording, { snapshot } = header;
  fed = 0;
  from = 0;
  since = performance.now();
  const whole = { ...snapshot, info: header.info, knobs: header.knobs, columns: replay.recording.columns };
  beginLanes(whole);
  take({ boot_id: `replay-${++serial}`, next: 1, reset: true, snapshot: whole, frames: [] });
}

function feed() {
  const { recording } = replay, due = recording.dueBy(at()), frames = [];
  for (; fed < due; fed++) frames.push(recording.frame(fed));
  if (frames.length) take({ boot_id: store.bootId, next: fed + 1, reset: false, frames });
}

function take(delta) {
  delta.now = clock();
  apply(delta);
  const news = { lanes: laneNews(delta.frames) };
  emit("own", news, { ...delta, own: news });
}

function tick() {
  if (!replay.on || !replay.playing) return;
  const ended = at() >= replay.recording.length; // checked before taking frames, during which more may become due
  feed();
  if (ended) pause();
}

// ---- opening and leaving ----------------------------------------------------------------------------------
/** Show a recording from its beginning; throws an Error that says what is wrong with it. */
function open(text, name) {
  const recording = new Recording(text, name);
  poll.hold(true);
  Object.assign(replay, { on: true, recording, playing: false, speed: 1 });
  time.follow(() => replay.recording.time(at()));
  emit("select", null);
  clearLanes();
  begin();
  clearInterval(timer);
  timer = setInterval(tick, TICK_MS);
  poll.showState("replay", "replay");
  play();
}

/** Show a recording once its text has come. Returns an error message, or "". @param {Promise<string>} text */
async function load(text, name) {
  try {
    open(await text, name);
    return "";
  } catch (error) {
    return error.message;
  }
}

/** Show the recorded demo that comes with the server; a view offers it. */
function demo() {
  return load(ask("/demo.jsonl", { text: true }), "demo.jsonl");
}
on("recorded demo", demo);

/** Show the recording that this server was started for. */
async function served() {
  const problem = await load(ask("/recording", { text: true }), given.recording);
  if (problem) poll.showState("lost", problem);
}

/** Return to the engine, where there is one. */
function live() {
  if (!replay.on) return;
  if (given.recording) return served();
  clearInterval(timer);
  Object.assign(replay, { on: false, recording: null, playing: false });
  time.follow(null);
  emit("select", null);
  clearLanes();
  poll.hold(false);
  emit("replay");
}
