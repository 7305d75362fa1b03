/* Sentences with emphasis, in the server's format. */
import { make } from "./dom.js";

/** @import { Sentence } from "./types.js" */

const TAGS = { bold: "b", value: "em" };

/**
 * Show a sentence in an element.
 * @param {HTMLElement} element
 * @param {Sentence} sentence
 */
export function writeSentence(element, sentence) {
  element.replaceChildren(...sentence.map(([text, style]) => (TAGS[style] ? make(TAGS[style], "", text) : text)));
}

/** @param {Sentence} sentence */
export const plain = (sentence) => sentence.map(([text]) => text).join("");
