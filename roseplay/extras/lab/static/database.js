/* Results that this browser keeps in IndexedDB: for each large document a small entry for the list. */
import { plain } from "page/shared/sentence.js";

/** What is known about a kept result without reading it: its kind, and in `about` what it compares or found, of which
 * `short` has the main part.
 * @typedef {{id: string, name: string | null, created: string, title: string, kind: import("./state.js").Mode,
 *   about: string, short: string}} Entry */

const NAME = "roseplay-lab";
const NOTHING = "This browser keeps nothing (a private window?): export a result to keep it.";
const FULL = "This browser has no room for another result: delete one under Results, or export it.";

export const MOST_KEPT = 24;

/** @type {Promise<IDBDatabase> | null} */
let opening = null;
function open() {
  opening = opening || new Promise((resolve, reject) => {
    let request;
    try {
      request = indexedDB.open(NAME, 1);
    } catch {
      return reject(new Error(NOTHING));
    }
    request.onupgradeneeded = () => {
      request.result.createObjectStore("entries", { keyPath: "id" });
      request.result.createObjectStore("documents", { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = request.onblocked = () => reject(new Error(NOTHING));
  });
  opening.catch(() => (opening = null));
  return opening;
}

/* Run one transaction: `act(entries, documents)` returns the request whose result is returned. */
async function within(mode, act) {
  const base = await open();
  return new Promise((resolve, reject) => {
    const change = base.transaction(["entries", "documents"], mode);
    const request = act(change.objectStore("entries"), change.objectStore("documents"));
    change.oncomplete = () => resolve(request && request.result);
    change.onabort = change.onerror = () => reject(refusal(change.error));
  });
}

const refusal = (error) => new Error(error && error.name === "QuotaExceededError" ? FULL : NOTHING);

/** All entries, newest first. @returns {Promise<Entry[]>} */
export async function listKept() {
  const entries = await within("readonly", (all) => all.getAll());
  return entries.sort((a, b) => (a.created < b.created ? 1 : -1));
}

export const getKept = (id) => within("readonly", (_entries, documents) => documents.get(id));

/** Keep a document, or its new name; throws an Error that says what to do if there is no room. */
export async function putKept(document) {
  const known = await listKept();
  if (known.length >= MOST_KEPT && !known.some(({ id }) => id === document.id)) {
    throw new Error(`This browser keeps ${MOST_KEPT} results: delete one under Results to keep this one too.`);
  }
  const entry = entryOf(document);
  await within("readwrite", (entries, documents) => {
    documents.put(document);
    return entries.put(entry);
  });
}

function entryOf({ id, name, created, title, kind, arms, summary }) {
  const { words } = summary.findings[0];
  const about = arms.B ? `A ${arms.A.label} · B ${arms.B.label}` : plain(words);
  const short = arms.B ? about : plain(words.filter(([, style]) => style)) || about;
  return { id, name, created, title, kind, about, short };
}

export const removeKept = (id) =>
  within("readwrite", (entries, documents) => {
    documents.delete(id);
    return entries.delete(id);
  });
