/* What can be asked in an empty lane: two questions each. */
import { store } from "../shared/store.js";

const EMBEDDED_MODEL = "tiny-chat";

/* That the embedded model, which knows little, answers well. */
const ITS_OWN = [
  ["Tell me a story about a fox.", "Why did my ITL spike?"],
  ["Tell me a story about a robot.", "What is paged attention?"],
  ["Tell me a story about a clock.", "What does the prefix cache do?"],
  ["Tell me a story about a cat.", "What is chunked prefill?"],
];

const GENERAL = [
  ["Tell me a story about a fox.", "Explain what a cache is."],
  ["Write a short poem about the sea.", "Name three uses of a queue."],
  ["Describe a day in the life of a robot.", "What is a language model?"],
  ["Write a letter to a friend about a journey.", "Explain how a clock works."],
];

/**
 * The questions of a lane.
 * @param {number} lane from 0
 */
export function suggestions(lane) {
  const questions = !store.info || store.info.model === EMBEDDED_MODEL ? ITS_OWN : GENERAL;
  return questions[lane % questions.length];
}
