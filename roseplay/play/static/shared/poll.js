/* The page's only connection. It polls GET /ui/delta for news, every 80 ms while the page is visible and once a second
 * while it is hidden, one poll at a time, and takes them into the store. The interval is fixed: if an answer or a
 * drawing takes long, only the wait for the next poll gets shorter.
 *
 * While a replay is shown, it polls only to keep this tab's lease, and drops the answers. Emits "heard" at each answer,
 * "start" with the engine's progress (null: live), and "replaced" at news of another engine or after a replay. */
import { ask } from "./ask.js";
import { emit, on } from "./events.js";
import { given } from "./given.js";
import { apply } from "./reduce.js";
import { store } from "./store.js";
import { tab } from "./tab.js";

const VISIBLE_MS = 80, STARTING_MS = 250, HIDDEN_MS = 1000, HELD_MS = 30000, TIMEOUT_MS = 10000, LEAST_MS = 10;
const RETRY_MS = [300, 500, 1000, 2000];

export const poll = {
  count: 0,
  failures: 0,
  held: false, // whether a replay is shown
  /** When the unanswered poll was sent, if there is one. @type {number | null} */
  asked: null,
  heard: 0, // when the last answer came
  alive: true,
  /** @type {string | null} */
  health: null,
  /** The progress of the engine's start, until it is live. @type {import("./types.js").Start | null} */
  starting: null,
  start,
  hold,
  showState,
};

/** @type {HTMLElement | null} */
let indicator = null;
let have = () => "";
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
let underWay = false, due = 0;

/** Show the connection's state in the header, with words. */
function showState(state, words) {
  if (!indicator || indicator.dataset.state === state) return;
  indicator.dataset.state = state;
  indicator.lastElementChild.textContent = words;
}

async function next() {
  if (underWay) return;
  underWay = true;
  clearTimeout(timer);
  if (poll.asked === null) poll.asked = performance.now();
  const query = { since: store.cursor || 0, boot: store.bootId || "", tab, ...(have() && { have: have() }) };
  let wait;
  try {
    wait = take(await ask("/delta", { query, ms: TIMEOUT_MS }));
  } catch {
    wait = RETRY_MS[Math.min(poll.failures++, RETRY_MS.length - 1)];
    if (poll.failures > 1 && !poll.held && !poll.starting?.failed) showState("lost", "reconnecting");
  }
  underWay = false;
  timer = setTimeout(next, Math.max(LEAST_MS, wait));
}

/** Returns the ms to wait before the next poll. @param {import("./types.js").Delta} delta */
function take(delta) {
  poll.failures = 0;
  poll.count++;
  poll.asked = null;
  poll.heard = performance.now();
  poll.alive = delta.alive !== false;
  poll.health = delta.health || null;
  const news = delta.start || poll.starting || poll.count === 1;
  poll.starting = delta.start || null;
  emit("heard");
  if (news) emit("start", poll.starting);
  if (delta.start) {
    if (delta.start.failed) showState("lost", "not started");
    else showState("starting", "starting");
    return document.hidden ? HIDDEN_MS : STARTING_MS;
  }
  if (!poll.held) {
    const replaced = store.bootId && store.bootId !== delta.boot_id;
    apply(delta);
    if (replaced) emit("replaced");
    emit("own", delta.own, delta);
    if (delta.overdue && poll.alive) showState("slow", "no answer");
    else if (poll.alive) showState("live", "connected");
    else showState("lost", "engine stopped");
  }
  const every = poll.held ? HELD_MS : document.hidden ? HIDDEN_MS : VISIBLE_MS, now = performance.now();
  due = Math.abs(due + every - now) > every ? now + every : due + every; // missed polls are not made up for
  return due - now;
}

/** Show the connection's state in `element`, and begin to ask where there is an engine.
 * @param {() => string} stamps what the page has of its lanes */
function start(element, stamps) {
  indicator = element;
  have = stamps;
  if (given.recording) return;
  document.addEventListener("visibilitychange", () => document.hidden || next());
  next();
}

/** Set whether something else feeds the store; when it no longer does, everything is fetched again. */
function hold(held) {
  Object.assign(poll, { held, asked: null });
  if (held) return;
  store.cursor = 0;
  if (!given.recording) next();
}

/** Whether the server can answer more than the progress of its engine's start. */
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
