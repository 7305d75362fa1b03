/* Rose.lab.store: results that this browser keeps, in IndexedDB: a small entry for the list beside each large document.
 *
 *   list()             entries, newest first: [{id, name, created, title, labels {A, B}, size}]
 *   get(id)            the document
 *   put(document)      keep it, or keep its new name; throws an Error that says what to do where there is no room
 *   remove(id) */
"use strict";
(function (Rose) {
  const { lab } = Rose;
  const NAME = "roseplay-lab", MOST = 24, NOTHING = "This browser keeps nothing (a private window?): export a result to keep it.";

  let opening = null;
  function open() {
    opening = opening || new Promise((resolve, reject) => {
      let asked;
      try {
        asked = indexedDB.open(NAME, 1);
      } catch {
        return reject(new Error(NOTHING));
      }
      asked.onupgradeneeded = () => {
        asked.result.createObjectStore("entries", { keyPath: "id" });
        asked.result.createObjectStore("documents", { keyPath: "id" });
      };
      asked.onsuccess = () => resolve(asked.result);
      asked.onerror = asked.onblocked = () => reject(new Error(NOTHING));
    });
    opening.catch(() => (opening = null));
    return opening;
  }

  /* One transaction: `act(entries, documents)` answers the request whose result is wanted. */
  async function within(mode, act) {
    const base = await open();
    return new Promise((resolve, reject) => {
      const change = base.transaction(["entries", "documents"], mode);
      const wanted = act(change.objectStore("entries"), change.objectStore("documents"));
      change.oncomplete = () => resolve(wanted && wanted.result);
      change.onabort = change.onerror = () => reject(refusal(change.error));
    });
  }

  const refusal = (error) =>
    new Error(error && error.name === "QuotaExceededError" ? "This browser has no room for another result: delete one under Results, or export it." : NOTHING);

  const store = (lab.store = { most: MOST });

  store.list = async () => (await within("readonly", (entries) => entries.getAll())).sort((a, b) => (a.created < b.created ? 1 : -1));

  store.get = (id) => within("readonly", (entries, documents) => documents.get(id));

  store.put = async function (document) {
    const known = await store.list();
    if (known.length >= MOST && !known.some(({ id }) => id === document.id)) {
      throw new Error(`This browser keeps ${MOST} results: delete one under Results to keep this one too.`);
    }
    const { id, name, created, title, arms } = document;
    const entry = { id, name, created, title, labels: { A: arms.A.label, B: arms.B.label } };
    await within("readwrite", (entries, documents) => {
      documents.put(document);
      return entries.put(entry);
    });
  };

  store.remove = (id) =>
    within("readwrite", (entries, documents) => {
      documents.delete(id);
      return entries.delete(id);
    });
})(window.Rose);
