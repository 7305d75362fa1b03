/* A page's surroundings for modules under test, which read them when they are imported: import this before any of them.
 * `given` is what the server puts into a page; the test that runs deno writes it to a file. */
import { readFileSync } from "node:fs";
import process from "node:process";

const texts = JSON.parse(readFileSync(process.argv[2], "utf-8"));

export const { given } = texts;
/** Texts as the server writes them, where a script has to write the same. */
export const { written } = texts;

class Observer {
  observe() {}
}

Object.assign(globalThis, {
  document: {
    addEventListener() {},
    body: { classList: { contains: () => false } },
    getElementById: (id) => (id === "rose-given" ? { textContent: JSON.stringify(given) } : null),
  },
  matchMedia: () => ({ matches: false }),
  MutationObserver: Observer,
});
