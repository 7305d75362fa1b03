/* What is done with a result: kept and named, listed and opened again, sent as a file, a link or a report.
 *
 * A finished run is kept at once; the last one shown comes back with the page. */
"use strict";
(function (Rose) {
  const { lab } = Rose, make = Rose.popover.element;
  const LAST = "roseplay-lab-result", LARGEST = 64e6, COPIED_MS = 2500;
  let dialog = null;

  function remember(id) {
    try {
      if (id) localStorage.setItem(LAST, id);
      else localStorage.removeItem(LAST);
    } catch {
      // then a reload begins with no result
    }
  }

  const remembered = () => {
    try {
      return localStorage.getItem(LAST);
    } catch {
      return null;
    }
  };

  // ---- kept -------------------------------------------------------------------------------------------------
  /** Keep a result in this browser; a refusal is said. */
  lab.keep = async function (document) {
    remember(document.id);
    try {
      await lab.store.put(document);
    } catch (error) {
      lab.say(error);
    }
  };

  lab.rename = async function (document, name) {
    if (!document || (document.name || "") === name) return;
    document.name = name || null;
    lab.changed(document);
    await lab.keep(document);
  };

  /** Show what the address asks for, else the last result shown in this browser. */
  lab.restore = async function () {
    const wanted = Rose.labWanted();
    try {
      if (wanted) return await fromServer(wanted);
      const last = remembered(), document = last && !lab.running() ? await lab.store.get(last) : null;
      if (document) lab.show(document, null);
    } catch (error) {
      if (wanted) lab.say(error);
    }
  };

  async function fromServer(id) {
    if (lab.document && lab.document.id === id) return;
    const kept = await lab.store.get(id).catch(() => null);
    if (kept) return lab.show(kept, null);
    lab.show(await lab.ask(`/result/${encodeURIComponent(id)}`), id);
  }
  Rose.on("lab", (what) => {
    if (what === "wanted" && lab.catalogue && Rose.labWanted()) fromServer(Rose.labWanted()).catch(lab.say);
  });

  // ---- the list ---------------------------------------------------------------------------------------------
  /** The dialog of kept results in `element`, and files that are dropped on the tab. */
  lab.kept = function (element) {
    dialog = element.querySelector("dialog");
    const file = dialog.querySelector("input[type=file]");
    dialog.querySelector(".open").onclick = () => file.click();
    dialog.querySelector(".close").onclick = () => dialog.close();
    file.onchange = () => {
      if (file.files.length) read(file.files[0]);
      file.value = "";
    };
    const tab = element.closest("[role=tabpanel]");
    tab.addEventListener("dragover", (event) => {
      if ([...event.dataTransfer.types].includes("Files")) event.preventDefault();
    });
    tab.addEventListener("drop", (event) => {
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      read(event.dataTransfer.files[0]);
    });
  };

  lab.results = async function () {
    said("");
    await list();
    if (!dialog.open) dialog.showModal();
  };

  const said = (words) => (dialog.querySelector(".rp-lab-said").textContent = words);

  async function list() {
    const box = dialog.querySelector("ul");
    try {
      const entries = await lab.store.list();
      box.replaceChildren(...entries.map(line));
      if (!entries.length) said("None yet. A finished run is kept by itself; a file can be opened or dropped on the page.");
      else said(`${entries.length} of ${lab.store.most} that fit`);
    } catch (error) {
      box.replaceChildren();
      said(error.message);
    }
  }

  function line(entry) {
    const title = entry.name || entry.title, when = new Date(entry.created);
    const name = make("input");
    Object.assign(name, { type: "text", value: entry.name || "", placeholder: entry.title, maxLength: 80 });
    name.setAttribute("aria-label", `Name of ${title}`);
    name.onchange = () => act(async () => {
      const document = lab.document && lab.document.id === entry.id ? lab.document : await lab.store.get(entry.id);
      document.name = name.value.trim() || null;
      lab.changed(document);
      await lab.store.put(document);
      if (document === lab.document) Rose.emit("lab", "summary");
    });
    const about = make("span", "", `${entry.title} · A ${entry.labels.A} · B ${entry.labels.B} · ${when.toLocaleString()}`);
    return make("li", "", name, button("Open", title, open), button("Delete", title, drop), about);

    async function open() {
      const document = await lab.store.get(entry.id);
      lab.show(document, null);
      remember(entry.id);
      dialog.close();
    }

    async function drop() {
      await lab.store.remove(entry.id);
      lab.forget(entry.id);
      if (remembered() === entry.id) remember(null);
      await list();
      (dialog.querySelector("li input") || dialog.querySelector(".open")).focus();
    }
  }

  function button(word, title, does) {
    const made = make("button", "", word);
    made.type = "button";
    made.setAttribute("aria-label", `${word} ${title}`);
    made.onclick = () => act(does);
    return made;
  }

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
      if (file.size > LARGEST) throw new Error(`${file.name} is too large for a result (${Math.round(file.size / 1e6)} MB).`);
      let document;
      try {
        document = JSON.parse(await file.text());
      } catch {
        throw new Error(`${file.name} is not a result of the Lab: it is no JSON.`);
      }
      const { id, summary } = await lab.ask("/open", document);
      document.summary = summary;
      lab.say("");
      lab.show(document, id);
      dialog.close();
      await lab.keep(document);
    } catch (error) {
      lab.say(error);
      said(error.message);
    }
  }

  lab.export = function () {
    if (!lab.document) return;
    const { scenario, created, id } = lab.document, link = make("a");
    link.href = URL.createObjectURL(new Blob([JSON.stringify(lab.document)], { type: "application/json" }));
    link.download = `roseplay-lab-${scenario}-${created.slice(0, 10)}-${id.slice(0, 6)}.json`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  lab.report = () => elsewhere(async (id) => {
    const link = make("a");
    Object.assign(link, { href: `/ui/lab/result/${encodeURIComponent(id)}/report.html`, target: "_blank", rel: "noopener" });
    link.click();
  });

  lab.link = () => elsewhere(async (id) => {
    const address = `${location.origin}${location.pathname}#lab=${id}`, button = document.getElementById("lab-link");
    history.replaceState(null, "", `#lab=${id}`);
    try {
      await navigator.clipboard.writeText(address);
    } catch {
      return lab.say(`The browser does not let the page copy; the address is ${address}`); // it stands in the address bar too
    }
    const words = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = words), COPIED_MS);
  });

  /* What needs the shown result to be on the server: one from this browser is handed over first. */
  async function elsewhere(does) {
    if (!lab.document) return;
    try {
      await does(await lab.onServer());
    } catch (error) {
      lab.say(error);
    }
  }

  Rose.on("lab", (what) => {
    if (what === "document" && lab.document) remember(lab.document.id);
  });
})(window.Rose);
