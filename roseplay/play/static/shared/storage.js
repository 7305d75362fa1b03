/* Small values that the browser stores, if it stores any: in a private window they last for this visit or not at
 * all. */

/** The value kept under a key, or null. @param {string} key */
export function stored(key, storage = () => localStorage) {
  try {
    return storage().getItem(key);
  } catch {
    return null;
  }
}

/** Keep a value; null removes it. @param {string} key @param {string | null} value */
export function keep(key, value, storage = () => localStorage) {
  try {
    if (value === null) storage().removeItem(key);
    else storage().setItem(key, value);
  } catch {
    // the browser keeps nothing
  }
}

/** For this tab only, over reloads. */
export const ofTab = () => sessionStorage;
