/* The result that this browser showed last, and results under their names. */
import { keep, stored } from "../shared/storage.js";
import { putKept } from "./database.js";
import { documentChanged } from "./document.js";
import { say } from "./state.js";

const LAST = "roseplay-lab-result";

/** The id of the result that was shown last, or null. */
export const lastShown = () => stored(LAST);

/** Remember which result is shown; null: none. */
export const rememberShown = (id) => keep(LAST, id);

/** Keep a result in this browser; a refusal is said. */
export async function keepDocument(document) {
  rememberShown(document.id);
  try {
    await putKept(document);
  } catch (error) {
    say(error);
  }
}

export async function renameDocument(document, name) {
  if (!document || (document.name || "") === name) return;
  document.name = name || null;
  documentChanged(document);
  await keepDocument(document);
}
