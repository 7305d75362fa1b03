/* Goodput: a mark for each request, at its TTFT and its own p99 ITL. Those inside the box are within both limits. Marks
 * of A are circles, those of B squares. */
import { drawBase, drawLevels, drawWords } from "page/shared/chart/axes.js";
import { evenTimes, linear, logarithmic, logTimes, logValues } from "page/shared/chart/scale.js";
import { make } from "page/shared/dom.js";
import { format } from "page/shared/format.js";
import { niceAxis } from "page/shared/numbers.js";
import { sharp } from "page/shared/pen.js";
import { fade } from "page/shared/theme.js";
import { keptOf, withinLimits } from "./document.js";
import { lookOf, nextMark, ring } from "./draw.js";
import { ARMS, lab } from "./state.js";
import { createView } from "./view.js";

const { amount, count } = format;
const NEAR_PX = 12, PARTS = 5, OVER = 1.25;

let head = null;

export function mount(element) {
  head = element.querySelector(".rp-rt");
  createView(element, {
    name: "Goodput",
    subtitle: "each request's TTFT and ITL p99; those in the box are within both limits",
    margin: { l: 44, r: 14, t: 6, b: 18 },
    draw,
    read,
    describe,
    keys: { ArrowLeft: next(-1), ArrowRight: next(1) },
  });
}

const next = (by) => nextMark(marks, (mark) => mark.request, by);

function axes(area) {
  const requests = lab.document ? lab.document.runs.flatMap((run) => run.requests) : [];
  const { ttft_ms: ttft, itl_ms: itl } = lab.limits || { ttft_ms: 500, itl_ms: 50 };
  const firsts = requests.map((request) => request.ttft_ms).filter((value) => value !== null);
  const tails = requests.map((request) => request.itl_p99_ms).filter((value) => value > 0);
  const { max, step } = niceAxis(Math.max(ttft * 1.08, ...firsts), PARTS);
  const low = Math.min(itl / 2, ...tails) / OVER, high = Math.max(itl * 2, ...tails) * OVER;
  const x = linear(0, max, area.x0, area.x1), y = logarithmic(low, high, area.y1, area.y0);
  return { step, low, high, ttft, itl, x, y };
}

/* A request with one token has no gap: its mark is on the base line. */
function marks(area) {
  const { x, y, low } = axes(area);
  if (!lab.document) return [];
  return lab.document.runs.flatMap(({ arm, repeat, requests }) => {
    const answered = requests.filter((request) => request.ttft_ms !== null);
    const at = ({ ttft_ms: ttft, itl_p99_ms: itl }) => ({ x: x(ttft), y: y(itl ?? low) });
    return answered.map((request) => ({ arm, repeat, request, ...at(request) }));
  });
}

function draw(pen, area, T) {
  const scale = axes(area), right = scale.x(scale.ttft), top = scale.y(scale.itl);
  pen.fill(T.well, area.x0, top, right - area.x0, area.y1 - top);
  drawLevels(pen, area, logTimes(scale.y, logValues(scale.low, scale.high, area.height / 22)), T);
  drawWords(pen, area, evenTimes(scale.x, PARTS, scale.step, " TTFT"), T);
  drawBase(pen, area, T);
  pen.line(area.x0, sharp(top), right, sharp(top), T.ink3, [1, 2]);
  pen.line(sharp(right), top, sharp(right), area.y1, T.ink3, [1, 2]);
  for (const mark of marks(area)) dot(pen, mark, T);
  counts();
}

function dot(pen, { arm, x, y }, T) {
  if (arm === "B") pen.fill(fade(T.rose, 0.75), x - 1.75, y - 1.75, 3.5, 3.5);
  else pen.circle(x, y, 1.9, null, fade(T.ink, 0.75), 1.1);
}

/* The number of requests within the limits, in each arm. */
function counts() {
  const words = lab.document ? ARMS.map((arm) => keptOf(arm)) : [];
  const key = words.map(({ kept, all }) => `${kept}/${all}`).join();
  if (head.dataset.key === key) return;
  head.dataset.key = key;
  head.replaceChildren(...words.map(({ kept, all }, i) => {
    const entry = make("span", `rp-lg${i ? " rp-hand" : ""}`, make("b", "", count(kept)), ` of ${count(all)}`);
    entry.title = `${ARMS[i]}: ${kept} of ${all} requests are within both limits, all repeats together`;
    return entry;
  }));
}

function read(area, point) {
  let best = null, near = NEAR_PX;
  for (const mark of marks(area)) {
    const far = point.mark
      ? (mark.request === point.mark ? 0 : Infinity)
      : Math.hypot(mark.x - point.x, mark.y - point.y);
    if (far <= near) [best, near] = [mark, far];
  }
  if (!best) return null;
  const { arm, repeat, request, x, y } = best;
  const tail = request.itl_p99_ms === null ? "one token" : `ITL p99 ${amount(request.itl_p99_ms)}`;
  const tokens = `${count(request.prompt_tokens)} + ${count(request.completion_tokens)} tokens`;
  const judged = withinLimits(request) ? "within both limits" : "not within both limits";
  const words = `${arm}${repeat} #${request.index}: TTFT ${amount(request.ttft_ms)}, ${tail}, ${tokens}, ${judged}`;
  return { words, marks: (pen, _area, T) => ring(pen, x, y, lookOf(arm, T).color, T) };
}

function describe() {
  const { ttft_ms: ttft, itl_ms: itl } = lab.limits;
  const say = (arm) => `${arm}: ${keptOf(arm).kept} of ${keptOf(arm).all}`;
  const limits = `TTFT within ${amount(ttft)} and ITL p99 within ${amount(itl)}`;
  return `Goodput: requests with ${limits}. ${ARMS.map(say).join(", ")}.`;
}
