/* A run, from the button to its result. The server owns the job, and every open page follows it. */
import { ask } from "page/shared/ask.js";
import { on } from "page/shared/events.js";
import { keep, stored } from "page/shared/storage.js";
import { showPaused } from "./address.js";
import { keepDocument, resultOnServer, showResult } from "./document.js";
import { setMode } from "./mode.js";
import { runOrder } from "./plan.js";
import { allRows } from "./points/document.js";
import { ARMS, lab, measuring, say, shownResult, tell } from "./state.js";

const ASK_MS = 300, RETRY_MS = 1500, OTHERS_MS = 2000, MOST_RETRIES = 8;
const MINE = "roseplay-lab-job"; // the job that this browser has started: its result is shown even after a reload
let timer = 0, given = null;

export async function run() {
  if (measuring() || !lab.plan) return;
  const { mode, job: before } = lab;
  const job = { id: "", kind: mode, state: "starting", error: null, progress: [], left_s: null, result: null };
  say("");
  lab.job = job;
  tell("job");
  try {
    job.id = (await ask("/lab/run", { body: runOrder() })).job;
    lab.edited = false;
    if (mode === "compare") lab.document = null;
    given = Object.fromEntries(ARMS.map((arm) => [arm, new Set(lab.plan[arm].given)]));
    keep(MINE, job.id);
    followJob(job);
    tell("document");
    tell("points");
  } catch (error) {
    lab.job = before;
    say(error);
    tell("job");
  }
}

export async function stop() {
  if (!measuring()) return;
  try {
    await ask("/lab/stop", { body: {} });
    if (lab.job.id) look();
  } catch (error) {
    say(error);
  }
}

/** Follow a job to its end, whoever started it. */
export async function followJob(job) {
  if (!["starting", "running"].includes(job.state)) {
    if (job.result && job.id === stored(MINE)) await finish(job);
    return;
  }
  lab.job = job;
  setMode(job.kind);
  showPaused(true);
  tell("job");
  look();
}

let failures = 0;
async function look() {
  clearTimeout(timer);
  const { id } = lab.job;
  try {
    const have = allRows(lab.job.so_far).reduce((runs, { row }) => runs + row.runs, 0);
    const job = await ask(`/lab/job?id=${encodeURIComponent(id)}&have=${have}`);
    failures = 0;
    if (lab.job.id !== id || !measuring()) return; // another poll was faster
    if (job.so_far === undefined) job.so_far = lab.job.so_far; // nothing more was measured
    const more = job.so_far !== lab.job.so_far;
    lab.job = job;
    if (!measuring()) return await finish(job);
    tell("job");
    if (more) tell("points");
    timer = setTimeout(look, ASK_MS);
  } catch (error) {
    if (error.status !== 404 && ++failures < MOST_RETRIES) timer = setTimeout(look, RETRY_MS);
    else await finish({ id, state: "error", error: error.message, progress: [], result: null });
  }
}

async function finish(job) {
  lab.job = job;
  failures = 0;
  const isMine = job.id === stored(MINE);
  if (isMine) keep(MINE, null);
  showPaused(false);
  if (job.state === "error") say(job.error || "The run failed.");
  else if (job.state === "stopped") say(stopText(job));
  if (job.result && (isMine || !shownResult())) await bring(job).catch(say);
  tell("job");
  tell("points");
}

function stopText({ result, progress, kind }) {
  if (!result) return "Stopped. Nothing from this run is kept.";
  if (kind !== "compare") return "Stopped: the values that were measured are kept.";
  const planned = progress.length / ARMS.length, done = progress.filter((run) => run.state === "done").length;
  const whole = Math.floor(done / ARMS.length), [were, are] = whole === 1 ? ["was", "is"] : ["were", "are"];
  return `Stopped: ${whole} of ${planned} repeats ${were} complete and ${are} kept.`;
}

async function bring(job) {
  const document = await resultOnServer(job.result);
  // Changes made while it ran are for the next run.
  const same = lab.edited && lab.scenario.name === document.scenario && lab.mode === document.kind;
  const next = same ? { plan: lab.plan, numbers: lab.numbers, asked: { ...lab.asked }, edited: true } : null;
  showResult(document, given);
  if (next) {
    Object.assign(lab, next);
    for (const what of ["plan", "numbers", "asked"]) tell(what);
  }
  await keepDocument(document); // then the list of kept results is shown again
}

/* Also follow a run that another page has begun. */
let askedAt = -Infinity;
on("frame", async (delta) => {
  if (!delta.lab || !lab.catalogue || measuring() || performance.now() - askedAt < OTHERS_MS) return;
  askedAt = performance.now();
  const { state } = await ask("/lab").catch(() => ({ state: null }));
  if (state && !measuring()) followJob(state);
});
