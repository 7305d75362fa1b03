/* The strip over the charts for a sweep or a search: a bar for each value. */
import { format } from "../../shared/format.js";
import { lab } from "../state.js";
import { valueWords } from "./curve.js";
import { rowsOf, settingLabel } from "./document.js";

/** "Poisson: a sweep of the rate". */
export function pointTitle(title) {
  const { setting } = lab.asked[/** @type {"sweep" | "find"} */ (lab.mode)], name = settingLabel(setting).toLowerCase();
  return lab.mode === "sweep" ? `${title}: a sweep of the ${name}` : `${title}: a search for the ${name}`;
}

/** What is asked for, in a few words. */
export function pointWords() {
  const kind = /** @type {"sweep" | "find"} */ (lab.mode), { from, to, points, setting } = lab.asked[kind];
  const range = `${from ?? "?"} to ${to ?? "?"}${setting === "rate_per_s" ? " req/s" : ""}`;
  const { repeats } = lab.numbers;
  if (kind === "sweep") return `${points ?? "?"} values, ${range}, in ${format.many(repeats, "round")}`;
  return `${range}, at least ${format.many(repeats, "repeat")} a try`;
}

/** A bar for each value: {arm, repeat, done, total, seconds, state}. @param {boolean} running */
export function pointBars(running) {
  if (running && lab.job) return grouped(lab.job.progress);
  const document = lab.points[/** @type {"sweep" | "find"} */ (lab.mode)];
  const done = rowsOf(document).map((row) => ({ arm: valueWords(document.setting, row.value), state: "done" }));
  return (done.length ? done : [{ arm: "", state: "waiting" }]).map((one) => ({
    ...one,
    repeat: 0,
    done: 0,
    total: 0,
    seconds: 0,
  }));
}

/* The runs of one value as one bar. */
function grouped(progress) {
  const values = new Map();
  for (const run of progress) values.set(run.arm, [...(values.get(run.arm) || []), run]);
  return [...values].map(([arm, runs]) => {
    const ended = runs.filter((run) => run.state === "done").length;
    const under = runs.find((run) => run.state === "running"),
      part = under && under.total ? under.done / under.total : 0;
    const state = ended === runs.length ? "done" : under ? "running" : "waiting";
    const short = arm.replace(/ req\/s$/, "").replace(/^.* /, "");
    return { arm: short, repeat: 0, done: ended + part, total: runs.length, seconds: 0, state };
  });
}
