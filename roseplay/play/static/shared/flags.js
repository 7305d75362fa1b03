/* Settings as flags of vLLM. */
/** @import { Setting } from "./given.js" */

/**
 * A setting as vLLM's flag; "" where it has none, or none for this value.
 * @param {Setting} setting
 * @param {any} value
 */
export function vllmFlag({ flag, opposite, kind }, value) {
  if (!flag || value === null || value === undefined) return "";
  if (kind !== "switch") return `${flag} ${value}`;
  const on = value !== Boolean(opposite);
  return on ? flag : flag.replace("--", "--no-");
}
