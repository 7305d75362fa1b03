/* The bar under a replay: its name, its position, and its controls. Space plays and pauses, ← and → move by a second.
 *
 * While it is shown, controls that would send something or change a knob are locked: the settings shown are the
 * recorded ones. */
import { make, makeButton, pathIcon, set, write } from "../shared/dom.js";
import { emit, isHeard, on } from "../shared/events.js";
import { given } from "../shared/given.js";
import { lock, SENDING } from "../shared/lock.js";
import { store } from "../shared/store.js";
import { trafficFrom } from "./fork.js";
import { replay } from "./replay.js";

const KEY_MS = 1000, FIGURES_MS = 100;
const LOCKED = `${SENDING}, .rp-show-me, .rp-demos ol`;
const WHY = "A replay shows the recorded settings; it has no engine to send to.";
let bar = null, parts = null, dragging = false;

const ICONS = { play: "M3 1.5v11l9-5.5z", pause: "M3 1.5h3v11H3zM8 1.5h3v11H8z" };

function build() {
  const name = make("span", "rp-name"), time = make("span", "rp-at");
  const onclick = () => (replay.playing ? replay.pause() : replay.play());
  const toggle = makeButton("", { className: "rp-toggle", onclick });
  const range = make("input", { type: "range", min: 0, step: 10, "aria-label": "Position in the recording" });
  const speeds = replay.speeds.map((factor) => new Option(`×${factor}`, String(factor)));
  const speed = make("select", { "aria-label": "Speed" }, ...speeds);
  const title = "Play its traffic from here on with two settings";
  const fork = makeButton("Fork here", { className: "rp-fork", title, onclick: forkHere });
  const back = makeButton("", { className: "rp-leave", onclick: replay.live });
  parts = { name, toggle, range, time, speed, fork, back };
  speed.onchange = () => replay.pace(Number(speed.value));
  drag(range);
  bar = make("section", { id: "rp-replay", "aria-label": "Replay" }, make("b", "", "Replay"), ...Object.values(parts));
  document.body.append(bar);
}

/* Hand over the traffic from this moment on, with the settings of this moment and what changed in them last. */
function forkHere() {
  replay.pause();
  const { recording } = replay, at = replay.at(), text = trafficFrom(recording, at);
  if (!text) return write(parts.name, "Nothing runs or arrives after this moment.");
  const steering = store.marks.filter(({ changes }) => !("slow_motion" in changes)), { changes } = steering.pop() ?? {};
  emit("fork", { name: `${recording.name} from ${clock(at)}`, text, knobs: { ...store.knobs }, changes });
}

/* Seeking backwards starts over, so the position follows a dragged thumb only as fast as that allows. */
function drag(range) {
  let wanted = null;
  range.addEventListener("input", () => {
    dragging = true;
    if (wanted === null) {
      requestAnimationFrame(() => {
        replay.seek(wanted);
        wanted = null;
      });
    }
    wanted = Number(range.value);
  });
  range.addEventListener("change", () => (dragging = false));
}

function clock(ms) {
  const seconds = String(Math.floor((ms % 60000) / 1000)).padStart(2, "0");
  return `${Math.floor(ms / 60000)}:${seconds}.${Math.floor((ms % 1000) / 100)}`;
}

function figures() {
  if (!bar || bar.hidden) return;
  const at = replay.at(), { length } = replay.recording;
  if (!dragging) parts.range.value = at;
  parts.range.style.setProperty("--done", `${(100 * at) / length}%`);
  parts.range.setAttribute("aria-valuetext", `${clock(at)} of ${clock(length)}`);
  write(parts.time, `${clock(at)} / ${clock(length)}`);
}
setInterval(figures, FIGURES_MS);

function show() {
  document.body.classList.toggle("rp-replaying", replay.on);
  lock("replay", replay.on ? WHY : null, LOCKED);
  const hint = document.querySelector("#rp-sched-head h3 span");
  if (hint) write(hint, replay.on ? "as recorded" : "acts on the next step");
  if (bar) bar.hidden = !replay.on;
  if (!replay.on) return;
  if (!bar) build();
  const { recording, playing } = replay, { created = "", info } = recording.header, served = given.recording;
  write(parts.name, recording.name);
  parts.name.title = `${recording.name}: recorded ${created} with ${info.model}`;
  parts.range.max = Math.ceil(recording.length);
  parts.toggle.replaceChildren(pathIcon(ICONS[playing ? "pause" : "play"]));
  set(parts.toggle, { "aria-label": playing ? "Pause" : "Play", title: `${playing ? "Pause" : "Play"} (Space)` });
  parts.speed.value = String(replay.speed);
  write(parts.back, served ? `Back to ${served}` : "Back to live");
  parts.fork.hidden = Boolean(served) || !isHeard("fork"); // there is no engine, or nothing takes it
  parts.back.hidden = Boolean(served) && served === recording.name;
  figures();
}
on("replay", show);

// ---- keys -------------------------------------------------------------------------------------------------
const HAS_ARROWS = "input, textarea, select, canvas, [role=tab], [role=radio], [contenteditable]";
const HAS_SPACE = `${HAS_ARROWS}, button, a, summary`;

document.addEventListener("keydown", (event) => {
  const at = event.target instanceof Element ? event.target : document.body;
  const by = { ArrowLeft: -KEY_MS, ArrowRight: KEY_MS };
  if (!replay.on || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === " " && !at.closest(HAS_SPACE)) parts.toggle.click();
  else if (event.key in by && !at.closest(HAS_ARROWS)) replay.seek(replay.at() + by[event.key]);
  else return;
  event.preventDefault();
});
