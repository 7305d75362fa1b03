/* Suggested questions for empty lanes: two each. */
import { store } from "../shared/store.js";

const EMBEDDED_MODEL = "tiny-chat";

/* Questions that the embedded model, which knows little, answers well. */
const ITS_OWN = [
  ["Tell me a story about a fox.", "Why did my ITL spike?"],
  ["Tell me a story about a robot.", "What is paged attention?"],
  ["Tell me a story about a clock.", "What does the prefix cache do?"],
  ["Tell me a story about a cat.", "What is chunked prefill?"],
];

/* Questions for any chat model that even one of a hundred million parameters answers well; it cannot translate. */
const GENERAL = [
  ["What is photosynthesis?", "Write a short poem about the sea."],
  ["List five things to pack for a weekend by the sea.", "What does a compiler do?"],
  ["Write a thank-you note to a teacher.", "Why do we have seasons?"],
  ["What is Paris known for?", "Give me a recipe for pancakes."],
];

/**
 * The questions of a lane.
 * @param {number} lane from 0
 */
export function suggestions(lane) {
  const questions = !store.info || store.info.model === EMBEDDED_MODEL ? ITS_OWN : GENERAL;
  return questions[lane % questions.length];
}
