/* A picture of two runs as text: in the page's address, so that a link needs no memory of a server, and in this
 * browser. */
import { given } from "../given.js";
import { check } from "../shape.js";

/** @import { Pair } from "../types.js" */

const NAME = "pair", MOST_BYTES = 300000, MOST_GAPS = 1500;
const FORMAT = "gzip"; // has a checksum: a changed link does not show other figures

/** @param {string} text of a pair as JSON; throws an Error that says what is wrong with it. @returns {Pair} */
export function parsePair(text) {
  const pair = JSON.parse(text);
  check(pair, given.recordingShape.frame.fields.pair, "");
  if (pair.sides.some(({ gaps, around, firsts }) => gaps.length + around.length + firsts.length > MOST_GAPS)) {
    throw new Error("it is too long");
  }
  return pair;
}

/** The address of this page that shows a pair. @param {Pair} pair */
export async function linkTo(pair) {
  const packed = new Blob([JSON.stringify(pair)]).stream().pipeThrough(new CompressionStream(FORMAT));
  const bytes = new Uint8Array(await new Response(packed).arrayBuffer());
  const letters = btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
  return `${location.origin}${location.pathname}#${NAME}=${encodeURIComponent(letters)}`;
}

/** The pair in an address's fragment; null if it names none. Throws an Error of one line if it is damaged.
 * @param {string} fragment
 * @returns {Promise<Pair | null>} */
export async function pairIn(fragment) {
  const letters = new URLSearchParams(fragment.slice(1)).get(NAME);
  if (letters === null) return null;
  try {
    return parsePair(await unpack(letters));
  } catch {
    throw new Error("This link holds no complete picture of two bursts: copy it again, in one piece.");
  }
}

async function unpack(letters) {
  const bytes = Uint8Array.from(atob(letters), (letter) => letter.charCodeAt(0));
  const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream(FORMAT)).getReader();
  const decoder = new TextDecoder();
  let text = "", size = 0;
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    size += part.value.length;
    if (size > MOST_BYTES) throw new Error("it is too long"); // a short link can unpack to any length
    text += decoder.decode(part.value, { stream: true });
  }
  return text + decoder.decode();
}
