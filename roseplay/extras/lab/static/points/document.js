/* The contents of a sweep or a search, from the server's summary. */
import { format } from "page/shared/format.js";
import { given } from "page/shared/given.js";
import { ARMS } from "../state.js";

/** @import { ArmName } from "../state.js" */

/* What is varied by sending other traffic. */
const TRAFFIC = { rate_per_s: "Rate", prompt_tokens: "Prompt tokens" };

/** One measured value in the server's summary, null for no limit; in a search, `left` is the range of values that are
 * left after the try.
 * @typedef {{value: number | null, kept: boolean, requests: number, runs: number, misses?: Record<string, number>,
 *   figures: Record<string, {median: number | null, range: (number | null)[]}>, left?: number[] | null}} Row */

/** The arms that a sweep or a search has measured. @returns {ArmName[]} */
export const armsOf = (document) => document && document.summary.b ? ARMS : ["A"];

/** The part of the summary that an arm has of its own: its `points`, `knee` and `peak`. @param {ArmName} arm */
export const summaryOf = (document, arm) => arm === "A" ? document.summary : document.summary.b;

/** The rows of an arm's sweep in rising order, or of a search in the order of its tries.
 * @param {ArmName} [arm]
 * @returns {Row[]} */
export const rowsOf = (document, arm = "A") => document ? summaryOf(document, arm).points : [];

/** The rows of all arms, and whose they are; the arm is "" if there is only one. */
export const allRows = (document) =>
  armsOf(document).flatMap((arm, _, arms) =>
    rowsOf(document, arm).map((row) => ({ arm: arms.length > 1 ? arm : "", row }))
  );

export const settingLabel = (setting) => TRAFFIC[setting] || given.settings.knobs[setting].label;

/** A value of the varied setting, without a unit. @param {string} setting @param {number | null} value */
export const plainValue = (setting, value) =>
  setting === "rate_per_s" ? String(+value.toPrecision(3)) : format.limit(value);

/** The label of a value's mark: "8 requests/s" or "64". */
export const valueWords = (setting, value) =>
  `${plainValue(setting, value)}${setting === "rate_per_s" ? " requests/s" : ""}`;

/** The findings of these kinds in a result's summary. @param {any} document @param {...string} kinds */
export const findingsOf = (document, ...kinds) => document.summary.findings.filter(({ kind }) => kinds.includes(kind));

export function answerRow(document) {
  const { answer } = (document && document.summary) || {};
  return rowsOf(document)[answer ?? -1] || null;
}
