/* The strip under the header: what happened, in one or two lines that the server makes; what limits the engine; and how
 * much time the charts show. It never changes its height. */
import { make, write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { segmented } from "../shared/legend.js";
import { plain, writeSentence } from "../shared/sentence.js";
import { clock, time } from "../shared/time.js";
import { limitIn } from "./limit.js";
import { SPANS, view } from "./view.js";

/** @import { Delta, Said, Sentence } from "../shared/types.js" */

const LIMIT_MS = 500, QUIET_MS = 60000;
const LIMITS = { blocks: "KV" }; // the others are called what they are
/** @type {Sentence[]} */
const PURPOSE = [
  [
    ["Four chats share one engine.", "bold"],
    [" Burst adds twenty more requests; the sliders decide who waits.", ""],
  ],
];

/** @type {HTMLElement | null} */
let box = null;
let lines = [], limit = null, share = null;
/** @type {Said | null} */
let said = null;
let used = false; // whether anything was asked since the page was opened

/** @param {HTMLElement} element the strip */
export function mount(element) {
  box = element.querySelector(".rp-strip");
  lines = [make("p"), make("p")];
  limit = make("b");
  share = make("small");
  const words = SPANS.map((ms, i) => `${ms / 1000}${i === SPANS.length - 1 ? " s" : ""}`);
  const spans = segmented("time shown", words, (word) => view.setSpan(parseInt(word) * 1000), SPANS.indexOf(view.span));
  on("zoom", () => {
    [...spans.children].forEach((button, i) => button.setAttribute("aria-pressed", String(SPANS[i] === view.span)));
  });
  box.append(
    make("div", { className: "rp-story-text", role: "status" }, ...lines),
    make("div", "rp-story-limit", make("span", "", "limited by"), make("span", "", limit, share)),
    make("div", "rp-story-span", spans),
  );
  show();
  setInterval(showLimit, LIMIT_MS);
}

on("reset", (/** @type {Delta} */ { snapshot }) => {
  said = snapshot?.story || null;
  used = Boolean(snapshot?.requests?.length);
  show();
});

on("frame", (/** @type {Delta} */ { frames }) => {
  const before = said, unused = !used;
  for (const frame of frames || []) {
    said = frame.story || said;
    used = used || Boolean(frame.requests?.length);
  }
  if (said !== before || (unused && used)) show();
});

function show() {
  if (!box) return;
  const fresh = said && (used || clock() - said.t < QUIET_MS);
  const [first, second] = fresh ? said.lines : used ? [] : PURPOSE;
  box.dataset.about = fresh ? said.about : used ? "" : "purpose";
  lines[0].parentElement.setAttribute("aria-live", fresh && said.about === "steady" ? "off" : "polite");
  [first, second].forEach((line, i) => {
    if (plain(line || []) !== lines[i].textContent) writeSentence(lines[i], line || []);
  });
  fit();
}

/* A sentence that is too long for its line is set smaller. */
function fit() {
  for (const line of lines) {
    line.classList.remove("rp-tight");
    line.classList.toggle("rp-tight", line.scrollWidth > line.clientWidth);
  }
}

function showLimit() {
  if (document.hidden || !box.clientWidth) return;
  const found = limitIn(view.latest(time.now()));
  write(limit, found ? LIMITS[found.name] || found.name : "–");
  write(share, found ? `${Math.round(100 * found.share)} %` : "");
  box.classList.toggle("rp-quiet", Boolean(said) && clock() - said.t > QUIET_MS);
}
