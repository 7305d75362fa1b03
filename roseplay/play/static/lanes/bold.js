/* What is bold in an answer: the text between ** and ** on one line. */

const MARK = "**", BOLD = /(?<![\w*])\*\*(?![\s*])[^\n*]*[^\s*]\*\*(?!\w)/g, OPEN = /(?<![\w*])\*\*(?![\s*])[^\n*]*$/;

/** The visible parts of an answer in order, without the marks around bold ones; the last one has no end. In an answer
 * that goes on, text that has no second mark yet is bold too.
 * @returns {{start: number, end: number, look: "" | "rp-bold"}[]} */
export function partsOf(text, goesOn) {
  const parts = [];
  let start = 0;
  const add = (from, to, next) => {
    parts.push({ start, end: from, look: "" }, { start: from + MARK.length, end: to, look: "rp-bold" });
    start = next;
  };
  for (const { 0: { length }, index } of text.matchAll(BOLD)) add(index, index + length - MARK.length, index + length);
  const open = goesOn && OPEN.exec(text);
  if (open) add(open.index, Infinity, Infinity);
  return open ? parts : [...parts, { start, end: Infinity, look: "" }];
}
