/* What is done with results: listed and opened again, sent as a file, a link or a report. A finished run is kept at
 * once; the last one shown comes back with the page. */
import { make, makeButton } from "../shared/dom.js";
import { saveFile } from "../shared/download.js";
import { on } from "../shared/events.js";
import { takeFiles } from "../shared/takefiles.js";
import { getKept, listKept, MOST_KEPT, putKept, removeKept } from "./database.js";
import { documentChanged, forgetDocument, idOnServer, keepDocument, lastShown, showDocument } from "./document.js";
import { wantedResult } from "./address.js";
import { running } from "./job.js";

import { ask } from "./server.js";
import { lab, say, tell } from "./state.js";

const LARGEST = 64e6, COPIED_MS = 2500;
let dialog = null;

/** Show what the address asks for, else the last result shown in this browser. */
export async function restore() {
  const wanted = wantedResult(), last = lastShown();
  try {
    if (wanted) return await fromServer(wanted);
    const document = last && !running() ? await getKept(last) : null;
    if (document) showDocument(document, null);
  } catch (error) {
    if (wanted) say(error);
  }
}

async function fromServer(id) {
  if (lab.document && lab.document.id === id) return;
  const kept = await getKept(id).catch(() => null);
  if (kept) return showDocument(kept, null);
  showDocument(await ask(`/result/${encodeURIComponent(id)}`), id);
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
      const document = lab.document && lab.document.id === entry.id ? lab.document : await getKept(entry.id);
      document.name = name.value.trim() || null;
      documentChanged(document);
      await putKept(document);
      if (document === lab.document) tell("summary");
    });
  const about = make("span", "", `${entry.title} · A ${entry.labels.A} · B ${entry.labels.B} · ${when}`);
  return make("li", "", name, button("Open", title, open), button("Delete", title, drop), about);

  async function open() {
    showDocument(await getKept(entry.id), null);
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
    showDocument(document, id);
    dialog.close();
    await keepDocument(document);
  } catch (error) {
    say(error);
    said(error.message);
  }
}

export function exportDocument() {
  if (!lab.document) return;
  const { scenario, created, id } = lab.document;
  const name = `roseplay-lab-${scenario}-${created.slice(0, 10)}-${id.slice(0, 6)}.json`;
  saveFile(name, JSON.stringify(lab.document), "application/json");
}

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
  if (!lab.document) return;
  try {
    await does(await idOnServer());
  } catch (error) {
    say(error);
  }
}
