/* Gradio's controls, as scripts know them: their inputs, and what a script puts into them. */

/** A change of some properties of a control; without any, it stays as it is. @param {object} [values] */
export const update = (values = {}) => ({ __type__: "update", ...values });

/** The input of the control with this id, or null. @param {string} id @param {"number" | "range"} [type] */
export function inputOf(id, type) {
  const selector = `#${id} ${type ? `input[type=${type}]` : ":is(input, textarea)"}`;
  return /** @type {HTMLInputElement | null} */ (document.querySelector(selector));
}

/** Call a function once all of these controls have inputs: Gradio mounts them one by one. @param {string[]} ids */
export function whenMounted(ids, act) {
  if (ids.every((id) => inputOf(id))) act();
  else setTimeout(whenMounted, 100, ids, act);
}

/** The word that is chosen in a row of words, or undefined. @param {string} id */
export function chosenIn(id) {
  const input = /** @type {HTMLInputElement | null} */ (document.querySelector(`#${id} input:checked`));
  return input?.value;
}

class Filled extends Event {}

/** Whether an event comes from `fill`, not from the user. @param {Event} event */
export const isFilled = (event) => event instanceof Filled;

/** Put a value into an input, unless it has it already. These events have Gradio's control take it too.
 * @param {HTMLInputElement | null} input
 * @param {string | number | boolean} value a boolean is whether it is checked */
export function fill(input, value) {
  const content = typeof value === "boolean" ? { checked: value } : { value: String(value) };
  const [[name, wanted]] = Object.entries(content);
  if (!input || input[name] === wanted) return;
  input[name] = wanted;
  for (const type of ["input", "change"]) input.dispatchEvent(new Filled(type, { bubbles: true }));
}

/** Choose a word in a row of words. @param {string} id @param {string} word */
export function choose(id, word) {
  const inputs = /** @type {HTMLInputElement[]} */ ([...document.querySelectorAll(`#${id} input`)]);
  fill(inputs.find(({ value }) => value === word) ?? null, true);
}

// ---- texts ------------------------------------------------------------------------------------------------
/* What is typed is complete at Enter, of which Gradio keeps the browser from telling, or when the box loses the focus:
 * then the box gets the event "typed". In a box of several lines, Enter begins the next. */
/** The box in which something is typed that is not complete. @type {Element | null} */
let draft = null;

/** Whether somebody types in a part of the page. @param {string} selector */
export const typing = (selector) => Boolean(draft?.closest(selector));

function onInput(event) {
  const { target } = event;
  if (!isFilled(event) && /^(text|textarea|number)$/.test(target.type)) draft = target;
}

function complete({ target }) {
  if (target !== draft) return;
  draft = null;
  target.dispatchEvent(new Event("typed", { bubbles: true }));
}

function onKey(event) {
  if (event.key === "Enter" && event.target.type !== "textarea") complete(event);
}

document.addEventListener("input", onInput, true);
document.addEventListener("keydown", onKey, true);
document.addEventListener("focusout", complete, true);
