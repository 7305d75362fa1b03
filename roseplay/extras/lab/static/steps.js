/* What each step of A and of B computed, A above B on the same clock. A bar is as wide as its step lasted and as high
 * as its tokens, on a log scale; dark steps computed prompts. Of several repeats, the one with the median duration. */
import { drawBase, drawLevels, drawUprights, drawWords } from "page/shared/chart/axes.js";
import { evenTicks, linear, logarithmic, ticksAt } from "page/shared/chart/scale.js";
import { make } from "page/shared/dom.js";
import { format } from "page/shared/format.js";
import { legendBox, legendEntry } from "page/shared/legend.js";
import { firstWhere, niceAxis } from "page/shared/numbers.js";
import { sharp } from "page/shared/pen.js";
import { fade } from "page/shared/theme.js";
import { typicalRun } from "./document.js";
import { readBeside } from "./draw.js";
import { ARMS, lab } from "./state.js";
import { createView } from "./view.js";

const { amount, count } = format;
const GAP = 16, TOP = 10000, LEAST_PX = 0.6, PARTS = 6, LEVELS = [10, 100, 1000];
const T0 = 0, T1 = 1, PROMPT = 2, DECODE = 3, RUNNING = 4, WAITING = 5; // columns of a step

export function mount(element) {
  const prompts = make("span", "rp-lg", legendBox("prompt"), legendBox("rose"), "with prompts");
  element.querySelector(".rp-rt").replaceChildren(prompts, legendEntry(legendBox("decode"), "decode only"));
  createView(element, {
    name: "Tokens per step",
    subtitle: "same arrivals, same clock; width = time, log height",
    margin: { l: 44, r: 14, t: 4, b: 18 },
    draw,
    read,
    describe,
    keys: { ArrowLeft: readBeside(-4), ArrowRight: readBeside(4) },
  });
}

/* Where each arm is drawn, and the clock of both. */
function axes(area) {
  const high = (area.height - GAP) / 2;
  const runs = lab.document ? Object.fromEntries(ARMS.map((arm) => [arm, typicalRun(arm)])) : {};
  const end = (run) => (run && run.steps.length ? run.steps[run.steps.length - 1][T1] : 0);
  const { max, step } = niceAxis(Math.max(1000, ...Object.values(runs).map(end)) / 1000, PARTS);
  const rows = { A: { top: area.y0, bottom: area.y0 + high }, B: { top: area.y0 + high + GAP, bottom: area.y1 } };
  const x = linear(0, max * 1000, area.x0, area.x1);
  return { runs, rows, x, ticks: evenTicks((seconds) => x(seconds * 1000), PARTS, step, "s") };
}

const y = ({ top, bottom }, tokens) => logarithmic(1, TOP, bottom, top)(Math.min(TOP, tokens));

function draw(pen, area, T) {
  const scale = axes(area);
  for (const arm of ARMS) {
    const row = scale.rows[arm], rowArea = { ...area, y0: row.top, y1: row.bottom };
    drawLevels(pen, rowArea, ticksAt((tokens) => y(row, tokens), LEVELS), T);
    drawUprights(pen, rowArea, scale.ticks, T);
    if (scale.runs[arm]) bars(pen, arm, row, scale, T);
    drawBase(pen, rowArea, T);
    if (lab.document) budget(pen, arm, row, area, T);
    const colors = arm === "A" ? [T.ink, T.surface] : [T.rosefill, "#ffffff"]; // as in the heads of the tables
    pen.badge(arm, area.x0 + 5, row.top + 1, 14, ...colors);
  }
  drawWords(pen, area, scale.ticks, T);
  const runs = Object.values(scale.runs);
  if (runs.length && runs.every((run) => run && !run.steps.length)) {
    pen.note("Other servers do not report single steps.", (area.x0 + area.x1) / 2, (area.y0 + area.y1) / 2);
  }
}

function bars(pen, arm, row, { runs, x }, T) {
  const withPrompts = arm === "A" ? T.prompt : T.rose;
  const fill = (step, tokens, color, gap) => {
    const left = x(step[T0]), top = y(row, tokens);
    pen.fill(color, left, top, Math.max(LEAST_PX, x(step[T1]) - left - gap), row.bottom - top);
  };
  // Decode first: a narrow step with prompts must not vanish behind its neighbours.
  for (const step of runs[arm].steps) if (!step[PROMPT]) fill(step, step[DECODE], T.decode, 0);
  for (const step of runs[arm].steps) if (step[PROMPT]) fill(step, step[PROMPT] + step[DECODE], withPrompts, 0.5);
}

function budget(pen, arm, row, area, T) {
  const { prefill_max_tokens: limit } = lab.document.arms[arm].knobs;
  if (limit === null) return;
  const at = sharp(y(row, limit));
  pen.line(area.x0, at, area.x1, at, T.rose, [4, 3]);
}

function stepAt({ steps }, time) {
  const step = steps[firstWhere(0, steps.length, (i) => steps[i][T0] > time) - 1];
  return step && time <= step[T1] ? step : null;
}

function read(area, { x: px }) {
  if (px < area.x0 || px > area.x1) return null;
  const { runs, rows, x } = axes(area), time = x.value(px);
  const steps = Object.fromEntries(ARMS.map((arm) => [arm, runs[arm] ? stepAt(runs[arm], time) : null]));
  const words = (arm) => {
    const step = steps[arm];
    if (!step) return `${arm} no step`;
    const tokens = `${step[PROMPT] ? `${count(step[PROMPT])} prompt + ` : ""}${count(step[DECODE])} decode`;
    return `${arm} ${tokens} in ${amount(step[T1] - step[T0])}, ${step[RUNNING]} running, ${step[WAITING]} waiting`;
  };
  const marks = (pen, _area, T) => {
    for (const arm of ARMS.filter((arm) => steps[arm])) {
      const { [T0]: t0, [T1]: t1 } = steps[arm], { top, bottom } = rows[arm];
      pen.fill(fade(T.ink, 0.1), x(t0), top, Math.max(1.5, x(t1) - x(t0)), bottom - top);
    }
  };
  return { words: `${(time / 1000).toFixed(2)} s: ${ARMS.map(words).join(" · ")}`, marks };
}

function describe() {
  const say = (arm) => {
    const run = typicalRun(arm);
    if (!run || !run.steps.length) return `${arm}: no steps`;
    const most = run.steps.reduce((best, step) => Math.max(best, step[PROMPT] + step[DECODE]), 0);
    const longest = run.steps.reduce((best, step) => Math.max(best, step[T1] - step[T0]), 0);
    const steps = `${run.steps.length} steps, at most ${most} tokens in one, the longest ${amount(longest)}`;
    return `${arm}, repeat ${run.repeat}: ${steps}`;
  };
  return `Tokens per step over time. ${ARMS.map(say).join(". ")}.`;
}
