/* Sentences with emphasis, in the server's format. */
import { make } from "./dom.js";

/** @import { Sentence } from "./types.js" */

const TAGS = { bold: "b", value: "em" };

/** A sentence as nodes and text. @param {Sentence} sentence */
export const drawn = (sentence) => sentence.map(([text, style]) => (TAGS[style] ? make(TAGS[style], "", text) : text));

/** A sentence without emphasis. @param {Sentence} sentence */
export const plain = (sentence) => sentence.map(([text]) => text).join("");
