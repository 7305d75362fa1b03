/* The data that the server has put into the page; see `page_head` in page.py. */
import { setTitle } from "./lock.js";

/** A knob, engine setting or sampling parameter, from `Setting.to_dict` in settings.py.
 * @typedef {object} Setting
 * @property {"whole" | "number" | "switch" | "choice" | "strings" | "text"} kind
 * @property {string} label
 * @property {string} short its name where there is little room
 * @property {string} hint what it acts on
 * @property {string} help what it does
 * @property {string} [watch] the figures that show a change of it, between ** and **
 * @property {string} [costs] what a change costs
 * @property {string} [flag] vLLM's flag for it
 * @property {boolean} [opposite] that flag is on where this is off
 * @property {string} [nearest] vLLM's flag that is nearest, where it has none
 * @property {string} [none] what null stands for; without it, null is no value
 * @property {string[]} [options] of a choice
 * @property {string[]} [shown] the same for people, where they differ
 * @property {string} [needs] what it needs to have an effect
 * @property {number} [least] of a number
 * @property {boolean} [above] the least value itself is too small
 * @property {number} [off] the number that stands for null where there are only numbers
 * @property {string} [control] the id of its control
 * @property {[number, number, number]} [slider] range and step of a sampling parameter, if it has a slider
 * @property {any} default
 * @property {"row" | "name"} [compared] how two runs may differ in it: "row", it has a row in a table of both */

/** A term with the contents of its popover, see `GLOSSARY` in terms.py: an `example`, as it stands in a file, with
 * `notes` on it; vLLM's metrics; for a knob, its name and what its `Setting` says.
 * @typedef {{what: string, example?: string, notes?: string, vllm?: string[], knob?: string} &
 *   Partial<Pick<Setting, "watch" | "costs" | "flag" | "nearest" | "opposite">>} Explained */

/** @typedef {object} Given
 * @property {Record<string, string>} terms what the controls without a popover mean, by element id
 * @property {Record<string, Explained>} glossary
 * @property {Record<string, any>} tabs what the scripts of extensions' tabs are given, by the tab's name
 * @property {{knobs: Record<string, Setting>, config: Record<string, Setting>}} settings the catalogue of settings
 * @property {Record<string, Setting>} sampling the settings of answers that have a control, by name
 * @property {Record<string, string>} controls element ids of the knobs' controls, from top to bottom
 * @property {Record<string, (number | null)[]>} stops the values of sliders whose places are not even, by element id
 * @property {[number, number]} rates the least and the greatest of steady traffic, in requests/s
 * @property {string | null} plotly the address of the plotly bundle
 * @property {{format: number, header: any, frame: any, rows: any, most_blocks: number}} recordingShape the format of
 *   recordings, the shapes of their lines and rows, and how many blocks a pool may have
 * @property {import("./records.js").Columns} columns of rows that come without their columns' names
 * @property {{name: string, title: string, shows: string}[]} demos
 * @property {boolean} recordedDemo whether a recording of the first demo came along
 * @property {string | null} recording the name of the recording that the server was started for */

/** @type {Given} */
export const given = JSON.parse(document.getElementById("rose-given").textContent);

/** Sets the titles of elements, by their ids, to what they mean, and calls `tried`. Gradio mounts its controls one by
 * one: those that are missing are tried again. A control that says where its value comes from keeps that.
 * @param {Record<string, string>} terms
 * @param {() => void} tried */
export function explain(terms, tried, left = 40) {
  const missing = Object.entries(terms).filter(([id, meaning]) => {
    const element = document.getElementById(id);
    if (element && !element.dataset.source) setTitle(element, meaning);
    return !element;
  });
  tried();
  if (missing.length && left) setTimeout(explain, 250, Object.fromEntries(missing), tried, left - 1);
}

/** Whether settings that need a GPU have an effect on a device: on a GPU, and on a simulated one. */
export const isGpu = (device) => /^(cuda|simulated)/.test(device);

/** A setting as vLLM's flag; "" where it has none, or none for this value. @param {Setting} setting */
export function vllmFlag({ flag, opposite, kind }, value) {
  if (!flag || value === null || value === undefined) return "";
  if (kind !== "switch") return `${flag} ${value}`;
  const on = value !== Boolean(opposite);
  return on ? flag : flag.replace("--", "--no-");
}
