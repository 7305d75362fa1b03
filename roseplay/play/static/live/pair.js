/* Before and after: the picture of two comparable bursts. When the later one has ended, it takes the place of two
 * charts, inter-token latency and tokens per step. When something else arrives, these return, and a line opens it
 * again. It stays, over reloads too, until it is dismissed or another one takes its place. A link can hold it. */
import { crossIcon, make, makeButton, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { copyPair } from "../shared/pair/copy.js";
import { pairIn, parsePair } from "../shared/pair/link.js";
import { describePair, drawPair } from "../shared/pair/picture.js";
import { Panel } from "../shared/panel.js";
import { poll } from "../shared/poll.js";
import { keep, ofTab, stored } from "../shared/storage.js";
import { store } from "../shared/store.js";
import { palette } from "../shared/theme.js";

/** @import { Delta, Pair } from "../shared/types.js" */

const KEPT = "roseplay-pair";

/** `open`: whether it is shown instead of its line. */
const shown = { pair: /** @type {Pair | null} */ (null), open: false };

let panel = null, line = null, problem = null;

/** @param {HTMLElement} element */
export function mount(element) {
  const copied = makeButton("Copy this result", { className: "rp-back", onclick: () => copyPair(copied, shown.pair) });
  const live = makeButton("Live charts", { className: "rp-back", onclick: () => open(false) });
  panel = new Panel(element, {
    name: "pair",
    canvas: "rp-pair-picture",
    head: [copied, live, close()],
    draw,
    describe: () => (shown.pair ? describePair(shown.pair) : ""),
  });
  line = makeButton("", { className: "rp-pair-open", onclick: () => open(true) });
  problem = make("span", { className: "rp-pair-problem", role: "alert" });
  element.append(make("div", "rp-pair-line", line, problem, close()));
  show();
  readLink();
  addEventListener("hashchange", readLink);
}

const close = () => makeButton(crossIcon(), { "aria-label": "Dismiss", title: "Dismiss", onclick: () => take(null) });

function draw(width, height) {
  if (!shown.pair) return false;
  panel.pen.begin(width, height);
  drawPair(panel.pen, width, height, shown.pair, palette());
}

/** Show a pair, or none. @param {Pair | null} pair */
function take(pair, opened = true) {
  Object.assign(shown, { pair, open: Boolean(pair) && opened });
  changed();
}

function open(yes) {
  shown.open = yes;
  changed();
}

function changed() {
  if (!poll.held) keep(KEPT, shown.pair && JSON.stringify(shown), ofTab);
  show();
}

/** Show it as it is now. @param {string} said why a link cannot be opened */
function show(said = "") {
  const { pair, open: opened } = shown;
  document.body.dataset.pair = opened ? "open" : pair || said ? "line" : "none"; // the styles hide the rest
  if (!panel) return;
  write(line, pair ? `Before and after: ${summary(pair)}` : "");
  write(problem, said);
  panel.soon();
}

function summary({ figures }) {
  const [{ title, before, after, unit }] = figures;
  return `${title} ${before} → ${after} ${unit}`;
}

/* What was shown before a reload. */
function restore() {
  try {
    const { pair, open: opened } = JSON.parse(stored(KEPT, ofTab));
    take(parsePair(JSON.stringify(pair)), opened);
  } catch {
    take(null); // nothing, or of another version of the page
  }
}

async function readLink() {
  const { hash } = location;
  try {
    const pair = await pairIn(hash);
    if (!pair) return;
    take(pair);
  } catch (error) {
    shown.open = false;
    show(error.message);
  }
  history.replaceState(null, "", location.pathname + location.search);
  panel.element.scrollIntoView({ block: "nearest" }); // on narrow screens it is below
}

on("reset", () => (poll.held ? take(null) : restore()));
on("frame", (/** @type {Delta} */ { reset, frames = [] }) => {
  if (reset) return; // what happened before the page was opened
  for (const { requests = [], pair } of frames) {
    if (shown.open && requests.some(([, event]) => event === "submitted")) open(false);
    if (pair) take({ ...pair, about: `${pair.about}, ${ofModel()}` });
  }
});

function ofModel() {
  const { model, device, server } = store.info;
  return `${model} on ${server || device}`;
}
