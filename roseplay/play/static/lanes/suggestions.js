/* Suggested questions for empty lanes: two each. */
import { store } from "../shared/store.js";

const EMBEDDED_MODEL = "tiny-chat";

/* Questions that the embedded model, which knows little, answers well. */
const ITS_OWN = [
  ["Tell me a story about a fox.", "Why did my ITL spike?"],
  ["What is paged attention?", "Tell me a story about a robot."],
  ["Tell me a story about a clock.", "What does the prefix cache do?"],
  ["What is chunked prefill?", "Tell me a story about a cat."],
];

/* Questions for any chat model that even one of a hundred million parameters answers well; it knows no recipes. */
const GENERAL = [
  ["Why is sleep important?", "Write a short poem about spring."],
  ["Give me three tips for learning a language.", "Why are forests important?"],
  ["What makes a good teacher?", "What is recycling?"],
  ["What are the benefits of walking?", "Why do people like music?"],
];

/** The questions of a lane. @param {number} lane from 0 */
export function suggestions(lane) {
  const questions = !store.info || store.info.model === EMBEDDED_MODEL ? ITS_OWN : GENERAL;
  return questions[lane % questions.length];
}
