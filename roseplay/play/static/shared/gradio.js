/* Gradio's controls, as scripts know them: their inputs, and what a script returns to Gradio for them. */

/** A change of some properties of a control; without any, it stays as it is. @param {object} [values] */
export const update = (values = {}) => ({ __type__: "update", ...values });

/**
 * The input of the control with this id, or null.
 * @param {string} id
 * @param {"number" | "range"} [type]
 */
export function inputOf(id, type) {
  const selector = `#${id} input${type ? `[type=${type}]` : ""}`;
  return /** @type {HTMLInputElement | null} */ (document.querySelector(selector));
}

/** The word that is chosen in a row of words, or undefined. @param {string} id */
export const chosenIn = (id) => document.querySelector(`#${id} label.selected`)?.textContent.trim();
