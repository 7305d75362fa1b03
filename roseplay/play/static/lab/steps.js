/* What each step of A and of B computed, A above B on the same clock. A bar is as wide as its step lasted and as high
 * as its tokens, on a log scale; dark steps held prompts. Of several repeats the one whose duration is the median. */
import { make } from "../shared/dom.js";
import { format } from "../shared/format.js";
import { legendBox, legendEntry } from "../shared/legend.js";
import { firstWhere, niceAxis } from "../shared/numbers.js";
import { sharp } from "../shared/pen.js";
import { fade } from "../shared/theme.js";
import { typicalRun } from "./document.js";
import { drawLevel, drawParts, readBeside, short } from "./draw.js";
import { ARMS, lab } from "./state.js";
import { createView } from "./view.js";

const { count, ms } = format;
const GAP = 16, TOP = 10000, LEAST_PX = 0.6, PARTS = 6;
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
    keys: {
      ArrowLeft: (point, area) => readBeside(area, point, -4),
      ArrowRight: (point, area) => readBeside(area, point, 4),
    },
  });
}

/* Where each arm is drawn, and the clock of both. */
function axes(area) {
  const high = (area.height - GAP) / 2;
  const runs = lab.document ? Object.fromEntries(ARMS.map((arm) => [arm, typicalRun(arm)])) : {};
  const end = (run) => (run && run.steps.length ? run.steps[run.steps.length - 1][T1] : 0);
  const { max, step } = niceAxis(Math.max(1000, ...Object.values(runs).map(end)) / 1000, PARTS);
  const rows = { A: { top: area.y0, bottom: area.y0 + high }, B: { top: area.y0 + high + GAP, bottom: area.y1 } };
  return { runs, max, step, rows, x: (time) => area.x0 + (time / 1000 / max) * area.width };
}

function y({ top, bottom }, tokens) {
  return bottom - (Math.log10(Math.max(1, Math.min(TOP, tokens))) / Math.log10(TOP)) * (bottom - top);
}

function draw(pen, area, T) {
  const scale = axes(area);
  for (const arm of ARMS) {
    const row = scale.rows[arm];
    grid(pen, row, area, scale, T);
    if (scale.runs[arm]) bars(pen, arm, row, scale, T);
    pen.line(area.x0, sharp(row.bottom), area.x1, sharp(row.bottom), T.line2);
    if (lab.document) budget(pen, arm, row, area, T);
    const colors = arm === "A" ? [T.ink, T.surface] : [T.rosefill, "#ffffff"]; // as in the heads of the tables
    pen.badge(arm, area.x0 + 5, row.top + 1, 14, ...colors);
  }
  drawParts(pen, area, PARTS, scale.step, "s", (seconds) => scale.x(seconds * 1000), T);
  const runs = Object.values(scale.runs);
  if (runs.length && runs.every((run) => run && !run.steps.length)) {
    pen.note("Other servers do not report single steps.", (area.x0 + area.x1) / 2, (area.y0 + area.y1) / 2);
  }
}

function grid(pen, row, area, { step, x }, T) {
  for (const tokens of [10, 100, 1000]) drawLevel(pen, area, y(row, tokens), short(tokens), T);
  for (let i = 0; i <= PARTS; i++) {
    const at = sharp(x(i * step * 1000));
    pen.line(at, row.top, at, row.bottom, T.grid);
  }
}

function bars(pen, arm, row, { runs, x }, T) {
  const { g } = pen, withPrompts = arm === "A" ? T.prompt : T.rose;
  const fill = (step, tokens, color, gap) => {
    const left = x(step[T0]), top = y(row, tokens);
    g.fillStyle = color;
    g.fillRect(left, top, Math.max(LEAST_PX, x(step[T1]) - left - gap), row.bottom - top);
  };
  // Decode first: a narrow step with prompts must not vanish behind its neighbours.
  for (const step of runs[arm].steps) if (!step[PROMPT]) fill(step, step[DECODE], T.decode, 0);
  for (const step of runs[arm].steps) if (step[PROMPT]) fill(step, step[PROMPT] + step[DECODE], withPrompts, 0.5);
}

function budget(pen, arm, row, area, T) {
  const { prefill_max_tokens: limit } = lab.document.arms[arm].knobs;
  if (limit === null) return;
  const at = sharp(y(row, limit));
  pen.g.lineWidth = 1.25;
  pen.line(area.x0, at, area.x1, at, T.rose, [4, 3]);
}

/* The step of a run at a time, or null. */
function stepAt({ steps }, time) {
  const found = steps[firstWhere(0, steps.length, (i) => steps[i][T0] > time) - 1];
  return found && time <= found[T1] ? found : null;
}

function read(area, { x: px }) {
  if (px < area.x0 || px > area.x1) return null;
  const { runs, max, rows, x } = axes(area), time = ((px - area.x0) / area.width) * max * 1000;
  const found = Object.fromEntries(ARMS.map((arm) => [arm, runs[arm] ? stepAt(runs[arm], time) : null]));
  const words = (arm) => {
    const step = found[arm];
    if (!step) return `${arm} no step`;
    const tokens = `${step[PROMPT] ? `${count(step[PROMPT])} prompt + ` : ""}${count(step[DECODE])} decode`;
    return `${arm} ${tokens} in ${ms(step[T1] - step[T0])} ms, ${step[RUNNING]} running, ${step[WAITING]} waiting`;
  };
  const marks = (pen, _area, T) => {
    pen.g.fillStyle = fade(T.ink, 0.1);
    for (const arm of ARMS) {
      const step = found[arm], { top, bottom } = rows[arm];
      if (step) pen.g.fillRect(x(step[T0]), top, Math.max(1.5, x(step[T1]) - x(step[T0])), bottom - top);
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
    return `${arm}, repeat ${run.repeat}: ${run.steps.length} steps, at most ${most} tokens in one, the longest ${
      ms(longest)
    } ms`;
  };
  return `Tokens per step over time. ${ARMS.map(say).join(". ")}.`;
}
