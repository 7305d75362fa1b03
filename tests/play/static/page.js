/* The data of a page for modules under test, which read it on import: import this file before any of them.
 * `given` is what the server puts into a page. The test that runs deno writes it to a file. */
import { readFileSync } from "node:fs";
import process from "node:process";

const texts = JSON.parse(readFileSync(process.argv[2], "utf-8"));

export const { given } = texts;
/** Texts written by the server that a script has to write in the same way. */
export const { written } = texts;

class Observer {
  observe() {}
}

Object.assign(globalThis, {
  document: {
    addEventListener() {},
    body: { append() {}, classList: { contains: () => false } },
    createElement: () => ({ append() {}, setAttribute() {} }),
    getElementById: (id) => (id === "rose-given" ? { textContent: JSON.stringify(given) } : null),
  },
  getComputedStyle: () => ({ getPropertyValue: () => "" }),
  matchMedia: () => ({ matches: false }),
  MutationObserver: Observer,
  ResizeObserver: Observer,
});
