/* What is done with results: listed and opened again, sent as a file, a link or a report. A finished run is kept at
 * once; the last one shown comes back with the page. */
import { make, makeButton } from "../shared/dom.js";
import { saveFile } from "../shared/download.js";
import { on } from "../shared/events.js";
import { takeFiles } from "../shared/takefiles.js";
import { wantedResult } from "./address.js";
import { getKept, listKept, MOST_KEPT, putKept, removeKept } from "./database.js";
import {
  documentChanged,
  forgetDocument,
  idOnServer,
  isOnServer,
  keepDocument,
  lastShown,
  showDocument,
} from "./document.js";
import { running } from "./job.js";
import { kindOf, showPoints } from "./points/document.js";
import { ask } from "./server.js";
import { lab, say, shownResult, tell } from "./state.js";

const LARGEST = 64e6, COPIED_MS = 2500;
let dialog = null;

/* Show a result of any kind. */
const showResult = (document) => kindOf(document) === "compare" ? showDocument(document) : showPoints(document);

/** Show what the address asks for, else the last result shown in this browser. */
export async function restore() {
  const wanted = wantedResult(), last = lastShown();
  try {
    if (wanted) return await fromServer(wanted);
    if (running()) return;
    if (lab.mode !== "compare") return await restorePoints();
    const document = last ? await getKept(last) : null;
    if (document) showDocument(document);
  } catch (error) {
    if (wanted) say(error);
  }
}

async function restorePoints() {
  const newest = (await listKept()).find(({ kind }) => kind === lab.mode);
  if (newest) showPoints(await getKept(newest.id));
}

async function fromServer(id) {
  if (shownResult() && shownResult().id === id) return;
  const kept = await getKept(id).catch(() => null);
  showResult(kept || isOnServer(await ask(`/result/${encodeURIComponent(id)}`), id));
}
on("lab", (what) => {
  if (what === "wanted" && lab.catalogue && wantedResult()) fromServer(wantedResult()).catch(say);
});

// ---- the list ---------------------------------------------------------------------------------------------
/** @param {HTMLElement} element with the dialog of kept results; files can be dropped on its tab */
export function mount(element) {
  dialog = element.querySelector("dialog");
  dialog.querySelector(".close").onclick = () => dialog.close();
  takeFiles(dialog.querySelector(".open"), dialog.querySelector("input"), element.closest("[role=tabpanel]"), read);
}

/** Show the list of kept results. */
export async function openResults() {
  said("");
  await list();
  if (!dialog.open) dialog.showModal();
}

const said = (words) => (dialog.querySelector(".rp-lab-said").textContent = words);

async function list() {
  const box = dialog.querySelector("ul");
  try {
    const entries = await listKept();
    box.replaceChildren(...entries.map(line));
    if (!entries.length) {
      said("None yet. A finished run is kept by itself; a file can be opened or dropped on the page.");
    } else said(`${entries.length} of ${MOST_KEPT} that fit`);
  } catch (error) {
    box.replaceChildren();
    said(error.message);
  }
}

function line(entry) {
  const title = entry.name || entry.title, when = new Date(entry.created).toLocaleString();
  const values = { type: "text", value: entry.name || "", placeholder: entry.title, maxLength: 80 };
  const name = make("input", { ...values, "aria-label": `Name of ${title}` });
  name.onchange = () =>
    act(async () => {
      const shown = shownResult(), document = shown && shown.id === entry.id ? shown : await getKept(entry.id);
      document.name = name.value.trim() || null;
      documentChanged(document);
      await putKept(document);
      if (document === shown) tell("summary");
    });
  const what = entry.labels ? `A ${entry.labels.A} · B ${entry.labels.B}` : entry.about;
  const about = make("span", "", `${entry.title} · ${what} · ${when}`);
  return make("li", "", name, button("Open", title, open), button("Delete", title, drop), about);

  async function open() {
    showResult(await getKept(entry.id));
    dialog.close();
  }

  async function drop() {
    await removeKept(entry.id);
    forgetDocument(entry.id);
    await list();
    (dialog.querySelector("li input") || dialog.querySelector(".open")).focus();
  }
}

const button = (word, title, does) => makeButton(word, { "aria-label": `${word} ${title}`, onclick: () => act(does) });

async function act(does) {
  try {
    await does();
  } catch (error) {
    said(error.message);
  }
}

// ---- files ------------------------------------------------------------------------------------------------
async function read(file) {
  try {
    if (file.size > LARGEST) {
      throw new Error(`${file.name} is too large for a result (${Math.round(file.size / 1e6)} MB).`);
    }
    let document;
    try {
      document = JSON.parse(await file.text());
    } catch {
      throw new Error(`${file.name} is not a result of the Lab: it is no JSON.`);
    }
    const { id, summary } = await ask("/open", document);
    document.summary = summary;
    say("");
    showResult(isOnServer(document, id));
    dialog.close();
    await keepDocument(document);
  } catch (error) {
    say(error);
    said(error.message);
  }
}

export function exportDocument() {
  const document = shownResult();
  if (document) saveFile(fileName(document, "json"), JSON.stringify(document), "application/json");
}

function fileName(document, ending) {
  const { scenario, created, id } = document, kind = kindOf(document);
  const what = kind === "compare" ? scenario : `${kind}-${scenario}`;
  return `roseplay-lab-${what}-${created.slice(0, 10)}-${id.slice(0, 6)}.${ending}`;
}

/** Save the table of a sweep or a search. */
export const exportTable = () =>
  withId(async (id) => {
    const answer = await fetch(`/ui/lab/result/${encodeURIComponent(id)}/points.csv`);
    if (!answer.ok) throw new Error("The server could not make the table: run it again.");
    saveFile(fileName(shownResult(), "csv"), await answer.text(), "text/csv");
  });

export const openReport = () =>
  withId((id) => {
    const href = `/ui/lab/result/${encodeURIComponent(id)}/report.html`;
    make("a", { href, target: "_blank", rel: "noopener" }).click();
  });

export const copyLink = () =>
  withId(async (id) => {
    const address = `${location.origin}${location.pathname}#lab=${id}`, button = document.getElementById("lab-link");
    history.replaceState(null, "", `#lab=${id}`);
    try {
      await navigator.clipboard.writeText(address);
    } catch {
      return say(`The browser does not let the page copy; the address is ${address}`);
    }
    const words = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = words), COPIED_MS);
  });

/* What needs the shown result to be on the server: one from this browser is handed over first. */
async function withId(does) {
  const document = shownResult();
  if (!document) return;
  try {
    await does(await idOnServer(document));
  } catch (error) {
    say(error);
  }
}
