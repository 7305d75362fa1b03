/* Before and after: the picture of two comparable bursts. When the later one has ended, it takes the place of two
 * charts, inter-token latency and tokens per step. When something else arrives, these return, and a line opens it
 * again. It stays, over reloads too, until it is dismissed or another one takes its place. A link can hold it. */
import { crossIcon, make, makeButton } from "../shared/dom.js";
import { emit, on } from "../shared/events.js";
import { pairIn, parsePair } from "../shared/pair/link.js";
import { PairPanel } from "../shared/pair/panel.js";
import { poll } from "../shared/poll.js";
import { keep, ofTab, stored } from "../shared/storage.js";
import { store } from "../shared/store.js";
import { tab } from "../shared/tab.js";
import { demos } from "./demos.js";

/** @import { Delta, Pair } from "../shared/types.js" */

const KEPT = "roseplay-pair";

/** `open`: whether it is shown instead of its line; `demo`, `linked`: where it is from; `problem`: with a link. */
const NONE = { pair: /** @type {Pair | null} */ (null), open: false, demo: false, linked: false, problem: "" };
const shown = { ...NONE };

/** @type {PairPanel | null} */
let panel = null;
/** @type {HTMLElement[]} */
let ofBursts = []; // buttons that are for what ran here
let ofDemo = false; // whether the demo that is playing has made a pair

/** @param {HTMLElement} element */
export function mount(element) {
  const dismiss = { "aria-label": "Dismiss", title: "Dismiss", onclick: () => take({}) };
  const title = "Play both bursts once more, in the reverse order";
  const check = makeButton("Check", { className: "rp-back", title, onclick: () => demos.start("check") });
  const href = `/ui/export/report?tab=${encodeURIComponent(tab)}`;
  const whole = "One file that opens anywhere, with all settings";
  const report = make("a", { className: "rp-back", title: whole, href }, "Report");
  ofBursts = [report, check];
  panel = new PairPanel(element, {
    around: element.closest("#rp-live"),
    back: "Live charts",
    opened: open,
    more: (head) => [...(head ? ofBursts : []), makeButton(crossIcon(), dismiss)],
  });
  restore();
  readLink();
  addEventListener("hashchange", readLink);
}

/** Show this instead. @param {Partial<typeof NONE>} what */
function take(what) {
  Object.assign(shown, NONE, what);
  refresh();
}

const open = (yes) => take({ ...shown, open: yes, problem: "" });

function refresh() {
  if (!poll.held) keep(KEPT, shown.pair && JSON.stringify(shown), ofTab);
  const held = shown.demo && demos.caption && !ends();
  const [report, check] = ofBursts;
  if (report) report.hidden = poll.held || shown.linked;
  if (check) check.hidden = report.hidden || shown.demo;
  panel?.showPair(held ? null : shown.pair, shown.open, shown.problem);
  emit("pair");
}

/* What was shown before a reload. */
function restore() {
  try {
    const kept = JSON.parse(stored(KEPT, ofTab)), { problem } = shown;
    take({ ...kept, pair: parsePair(JSON.stringify(kept.pair)), open: kept.open && !problem, problem });
  } catch {
    take({ problem: shown.problem }); // nothing, or of another version of the page
  }
}

async function readLink() {
  try {
    const pair = await pairIn(location.hash);
    if (!pair) return;
    take({ pair, open: true, linked: true });
  } catch (error) {
    take({ ...shown, open: false, problem: error.message });
  }
  history.replaceState(null, "", location.pathname + location.search);
  panel.element.scrollIntoView({ block: "nearest" }); // on narrow screens it is below
}

on("reset", () => (poll.held ? shown.linked || take({}) : restore()));
on("frame", (/** @type {Delta} */ { reset, frames = [], demo }) => {
  if (reset) return; // what happened before the page was opened
  for (const { requests = [], pair } of frames) {
    if (shown.open && !ends() && requests.some(([, event]) => event === "submitted")) open(false);
    if (!pair) continue;
    ofDemo = Boolean(demo || demos.caption);
    const named = { ...pair, about: `${pair.about}, ${ofModel()}` };
    take({ pair: named, open: !demos.caption || ends(), demo: ofDemo });
  }
});

/* Whether a demo tells its result, which the picture does not give away before. */
const ends = () => demos.caption?.scene === demos.caption?.scenes - 1;

/* The last caption of a demo that compares bursts speaks of it; the next demo takes it away. */
on("demo", () => {
  const begins = demos.caption?.scene === 0;
  if (begins) ofDemo = false;
  if (begins && shown.demo) take({});
  if (ofDemo && demos.caption && ends()) open(true);
  else if (shown.demo) refresh();
});

document.addEventListener("keydown", ({ key }) => {
  if (key === "Escape" && shown.open && !document.querySelector("dialog[open]")) open(false);
});

function ofModel() {
  const { model, device, server } = store.info;
  return `${model} on ${server || device}`;
}
