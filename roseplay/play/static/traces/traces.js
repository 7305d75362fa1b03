/* The Traces tab: the contents of the current run and its downloads; a recording opened from a file, which only this
 * browser reads; and the demo that comes with the server. */
import { ask } from "../shared/ask.js";
import { write } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { ready } from "../shared/ready.js";
import { tab } from "../shared/tab.js";
import { takeFiles } from "../shared/takefiles.js";
import { mountContents } from "./contents.js";
import { replay } from "../replay/replay.js";

const AGAIN_MS = 2000;
const FIGURES = ["seconds", "steps", "requests", "tokens", "bytes"];

const length = (s) => (s < 60 ? `${s.toFixed(1)} s` : `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`);
const WORDS = { seconds: length, bytes: format.bytes };

let box = null, status = null;

const part = (selector) => box.querySelector(selector);
const links = () => box.querySelectorAll("a[data-file]");

export function mount(element) {
  box = element.querySelector(".rp-traces");
  status = part(".rp-open-said");
  for (const link of links()) link.href = `/ui/export/${link.dataset.file}?tab=${encodeURIComponent(tab)}`;
  box.addEventListener("click", (event) => {
    if (event.target.closest && event.target.closest("a[aria-disabled]")) event.preventDefault();
  });
  on("connection", (trouble) => (trouble && trouble.kind === "server" ? offer(false) : look()));
  setInterval(look, AGAIN_MS);
  new ResizeObserver(look).observe(box); // from nothing to something when the tab is shown
  const demo = part(".rp-demo");
  if (demo) demo.onclick = async () => onLoad(await replay.demo());
  mountContents(part(".rp-contents-of"));
  takeFiles(part(".rp-choose"), part("input[type=file]"), part(".rp-drop-zone"), take);
}

// ---- this run -------------------------------------------------------------------------------------------
async function look() {
  if (!box.offsetParent || !ready()) return;
  const run = await ask("/export", { ms: AGAIN_MS * 2 }).catch(() => null); // the header shows a server that is gone
  if (run) show(run);
}

function show(run) {
  const any = run.steps + run.requests > 0;
  for (const name of FIGURES) {
    const cell = part(`td[data-of=${name}]`), value = (WORDS[name] || format.count)(run[name]);
    write(cell, any ? value : "–");
  }
  box.classList.toggle("rp-no-run", !any);
  offer(any);
  write(part(".rp-to-file"), run.file ? `Also written to ${run.file}, with the texts of all requests.` : "");
}

/* Enable or disable the downloads. */
function offer(any) {
  for (const link of links()) {
    if (any) link.removeAttribute("aria-disabled");
    else link.setAttribute("aria-disabled", "true");
  }
}

// ---- opening --------------------------------------------------------------------------------------------
function onLoad(problem) {
  write(status, problem);
  status.classList.toggle("rp-bad", Boolean(problem));
  if (problem) return;
  document.getElementById("rp-live-button").click();
  document.querySelector("#rp-replay .rp-toggle").focus(); // Space plays and pauses
}

async function take(chosen) {
  write(status, `Reading ${chosen.name} …`);
  status.classList.remove("rp-bad");
  onLoad(await replay.load(chosen.text(), chosen.name));
}
