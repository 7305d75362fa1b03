/* Events of the page. One listener's error does not stop the others. */

/** @type {Map<string, Set<(...args: any[]) => void>>} */
const listeners = new Map();

/** Calls `listener` for each event `name`. Returns a function that ends it.
 * @param {(...args: any[]) => void} listener */
export function on(name, listener) {
  if (!listeners.has(name)) listeners.set(name, new Set());
  listeners.get(name).add(listener);
  return () => listeners.get(name).delete(listener);
}

export const isHeard = (name) => Boolean(listeners.get(name)?.size);

/** @param {string} name @param {...any} args */
export function emit(name, ...args) {
  for (const listener of listeners.get(name) || []) {
    try {
      listener(...args);
    } catch (error) {
      console.error(`${name} listener:`, error);
    }
  }
}
