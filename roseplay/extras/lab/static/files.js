/* Actions on results: listing and reopening them, and sharing them as a file, a link or a report. A finished run is
 * kept at once; the last one shown is shown again when the page is reopened. */
import { ask } from "page/shared/ask.js";
import { copy } from "page/shared/copy.js";
import { make, makeButton } from "page/shared/dom.js";
import { saveFile } from "page/shared/download.js";
import { on } from "page/shared/events.js";
import { takeFiles } from "page/shared/takefiles.js";
import { wantedResult } from "./address.js";
import { getKept, listKept, MOST_KEPT, putKept, removeKept } from "./database.js";
import {
  documentChanged,
  forgetDocument,
  idOnServer,
  keepDocument,
  lastShown,
  resultOnServer,
  showResult,
} from "./document.js";
import { lab, measuring, say, shownResult, tell } from "./state.js";

const LARGEST = 64e6, COPIED_MS = 2500;
let dialog = null;

/** Show the result that the address names, otherwise the last one shown in this browser. */
export async function restore() {
  const wanted = wantedResult();
  try {
    if (wanted) return await fromServer(wanted);
    if (measuring()) return;
    const last = lab.mode === "compare" ? lastShown() : await newest(), document = last ? await getKept(last) : null;
    if (document) showResult(document);
  } catch (error) {
    if (wanted) say(error);
  }
}

async function newest() {
  const entry = (await listKept()).find(({ kind }) => kind === lab.mode);
  return entry ? entry.id : null;
}

async function fromServer(id) {
  if (shownResult() && shownResult().id === id) return;
  showResult(await getKept(id).catch(() => null) || await resultOnServer(id));
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

export async function openResults() {
  report("");
  await list();
  if (!dialog.open) dialog.showModal();
}

const report = (words) => (dialog.querySelector(".rp-lab-said").textContent = words);

async function list() {
  const box = dialog.querySelector("ul");
  try {
    const entries = await listKept();
    box.replaceChildren(...entries.map(line));
    if (!entries.length) {
      report("None yet. Finished runs are kept automatically. To open a file, choose it or drop it on the page.");
    } else report(`${entries.length} of ${MOST_KEPT} that fit`);
  } catch (error) {
    box.replaceChildren();
    report(error.message);
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
  const about = make("span", "", [entry.title, entry.about, when].filter(Boolean).join(" · "));
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
    report(error.message);
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
      throw new Error(`${file.name} is not a result of the Lab: it is not JSON.`);
    }
    document = await resultOnServer((await ask("/lab/open", { body: document })).id);
    say("");
    showResult(document);
    dialog.close();
    await keepDocument(document);
  } catch (error) {
    say(error);
    report(error.message);
  }
}

export function exportDocument() {
  const document = shownResult();
  if (document) saveFile(fileName(document, "json"), JSON.stringify(document), "application/json");
}

function fileName(document, ending) {
  const { kind, scenario, created, id } = document;
  const what = kind === "compare" ? scenario : `${kind}-${scenario}`;
  return `roseplay-lab-${what}-${created.slice(0, 10)}-${id.slice(0, 6)}.${ending}`;
}

export const exportTable = () =>
  withId(async (id) => {
    const table = await ask(`/lab/result/${encodeURIComponent(await id)}/points.csv`, { text: true });
    saveFile(fileName(shownResult(), "csv"), table, "text/csv");
  });

export const openReport = () =>
  withId(async (id) => {
    const href = `/ui/lab/result/${encodeURIComponent(await id)}/report.html`;
    make("a", { href, target: "_blank", rel: "noopener" }).click();
  });

export const copyLink = () =>
  withId(async (id) => {
    const address = id.then((it) => `${location.origin}${location.pathname}#lab=${it}`);
    const done = await copy(address), button = document.getElementById("lab-link"), words = button.textContent;
    history.replaceState(null, "", await address);
    if (!done) return say(`The browser does not let the page copy. The address is ${await address}`);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = words), COPIED_MS);
  });

/* Do something that needs the shown result's id on the server, still to come: one from this browser is sent there. */
async function withId(does) {
  const document = shownResult();
  if (!document) return;
  try {
    await does(idOnServer(document));
  } catch (error) {
    say(error);
  }
}
