/* Rose.lab.run, .stop and .progress: a run from the button to its result, and the strip that shows how far it is. The job belongs to
 * the server: whoever opens the page meanwhile follows the same one. */
"use strict";
(function (Rose) {
  const { lab } = Rose, make = Rose.popover.element;
  const ASK_MS = 300, RETRY_MS = 1500, OTHERS_MS = 2000, MOST_RETRIES = 8;
  const MINE = "roseplay-lab-job";
  let timer = 0, starting = false, given = null;

  lab.running = () => starting || Boolean(lab.job && ["starting", "running"].includes(lab.job.state));
  const tell = () => Rose.emit("lab", "job");

  lab.run = async function () {
    if (lab.running() || !lab.plan) return;
    lab.say("");
    starting = true;
    tell();
    try {
      const { job } = await lab.ask("/run", lab.order());
      starting = false;
      Object.assign(lab, { document: null, serverId: null, edited: false });
      given = Object.fromEntries(lab.arms.map((arm) => [arm, new Set(lab.plan[arm].given)]));
      mine(job);
      lab.follow({ id: job, state: "starting", error: null, progress: [], left_s: null, result: null });
      Rose.emit("lab", "document");
    } catch (error) {
      starting = false;
      lab.say(error);
      tell();
    }
  };

  lab.stop = async function () {
    if (!lab.running()) return;
    try {
      await lab.ask("/stop", {});
      look();
    } catch (error) {
      lab.say(error);
    }
  };

  /* The job that this browser has started: its result is shown even if the page was closed meanwhile. */
  function mine(job) {
    try {
      if (job) localStorage.setItem(MINE, job);
      return localStorage.getItem(MINE);
    } catch {
      return null;
    }
  }

  function forget() {
    try {
      localStorage.removeItem(MINE);
    } catch {
      // nothing was kept
    }
  }

  /** Follow a job to its end, whoever started it. */
  lab.follow = async function (job) {
    if (!["starting", "running"].includes(job.state)) return job.result && job.id === mine() ? ended(job) : undefined;
    lab.job = job;
    Rose.labPauses(true);
    tell();
    look();
  };

  let failures = 0;
  async function look() {
    clearTimeout(timer);
    const { id } = lab.job;
    try {
      const job = await lab.ask(`/job?id=${encodeURIComponent(id)}`);
      failures = 0;
      if (lab.job.id !== id || !lab.running()) return; // another look was quicker
      lab.job = job;
      if (!lab.running()) return await ended(job);
      tell();
      timer = setTimeout(look, ASK_MS);
    } catch (error) {
      if (error.status !== 404 && ++failures < MOST_RETRIES) timer = setTimeout(look, RETRY_MS);
      else await ended({ id, state: "error", error: error.message, progress: [], result: null });
    }
  }

  async function ended(job) {
    lab.job = job;
    failures = 0;
    const own = job.id === mine();
    if (own) forget();
    Rose.labPauses(false);
    if (job.state === "error") lab.say(job.error || "The run failed.");
    else if (job.state === "stopped") lab.say(stopped(job));
    if (job.result && (own || !lab.document)) await bring(job).catch(lab.say);
    tell();
  }

  function stopped({ result, progress }) {
    const planned = progress.length / lab.arms.length, whole = Math.floor(progress.filter((run) => run.state === "done").length / lab.arms.length);
    return result ? `Stopped: ${whole} of ${planned} repeats ${whole === 1 ? "was" : "were"} complete and ${whole === 1 ? "is" : "are"} kept.` : "Stopped. Nothing is kept of this run.";
  }

  async function bring(job) {
    const document = await lab.ask(`/result/${encodeURIComponent(job.result)}`);
    // What was set while it ran is for the next run.
    const next = lab.edited && lab.scenario.name === document.scenario ? { plan: lab.plan, numbers: lab.numbers, edited: true } : null;
    lab.show(document, job.result, given);
    if (next) {
      Object.assign(lab, next);
      Rose.emit("lab", "plan");
      Rose.emit("lab", "numbers");
    }
    lab.keep(document);
  }

  /* Somebody else has begun a run: this page follows it too. */
  let askedAt = -Infinity;
  Rose.on("frame", async (delta) => {
    if (!delta.lab || !lab.catalogue || lab.running() || performance.now() - askedAt < OTHERS_MS) return;
    askedAt = performance.now();
    const { state } = await lab.ask("").catch(() => ({ state: null }));
    if (state && !lab.running()) lab.follow(state);
  });

  // ---- the strip --------------------------------------------------------------------------------------------
  const { count } = Rose.format;

  /** The strip over the charts: what is run, how far it is, and what the server refuses. */
  lab.progress = function (element) {
    const part = (selector) => element.querySelector(selector);
    const title = part("h3"), name = part(".rp-lab-name"), about = part(".rp-sub"), left = part(".rp-lab-left");
    const error = part(".rp-lab-error"), bars = part(".rp-lab-bars");
    title.title = lab.meaning("lab-run");

    name.addEventListener("change", () => lab.rename(lab.document, name.value.trim()));
    name.addEventListener("keydown", (event) => event.key === "Enter" && name.blur());

    /* [{arm, repeat, done, total, seconds, state}] of the job, else of the result, else of what would be run. */
    function runs() {
      if (lab.running() && lab.job) return lab.job.progress.length ? lab.job.progress : planned();
      if (!lab.document) return planned();
      const done = new Map();
      return lab.document.order.map((arm) => {
        const repeat = (done.get(arm) || 0) + 1;
        done.set(arm, repeat);
        const run = lab.document.runs.find((one) => one.arm === arm && one.repeat === repeat) || { requests: [], seconds: 0 };
        return { arm, repeat, done: run.requests.length, total: run.requests.length, seconds: run.seconds, state: "done" };
      });
    }

    function planned() {
      const repeats = Math.max(1, Math.min(20, Math.round(lab.numbers.repeats) || 1)), order = [];
      for (let repeat = 1; repeat <= repeats; repeat++) {
        for (const arm of repeat % 2 ? lab.arms : [...lab.arms].reverse()) order.push({ arm, repeat, done: 0, total: 0, seconds: 0, state: "waiting" });
      }
      return order;
    }

    function bar({ arm, repeat, done, total, seconds, state }, wide) {
      const fill = make("i");
      fill.style.width = `${state === "done" ? 100 : total ? (100 * done) / total : 0}%`;
      const figure = state === "done" ? `${seconds.toFixed(seconds < 10 ? 2 : 1)} s` : state === "running" ? `${count(done)}/${count(total)}` : "";
      const box = make("div", `rp-lab-bar ${arm.toLowerCase()}`, make("u", "", fill), make("span", "", `${arm} · ${repeat}`), make("em", "", wide ? figure : ""));
      box.title = `${arm}, repeat ${repeat}: ${state}${figure ? `, ${figure}` : ""}`;
      return box;
    }

    function words(all) {
      const { num_requests: requests, repeats } = lab.numbers, order = all.map(({ arm }) => arm);
      const shown = order.length > 12 ? `${order.slice(0, 12).join(" ")} …` : order.join(" ");
      return [requests ? `${count(requests)} requests` : "", `${repeats === 1 ? "1 repeat" : `${repeats} repeats`} each`, `order ${shown}`].filter(Boolean).join(", ");
    }

    function state(all) {
      if (starting || (lab.running() && lab.job.state === "starting")) return "starting";
      if (lab.running()) {
        const at = all.findIndex((run) => run.state === "running"), soon = lab.job.left_s;
        const rest = typeof soon === "number" ? ` · about ${soon < 1 ? "1" : Math.ceil(soon)} s left` : "";
        return `run ${(at < 0 ? all.filter((run) => run.state === "done").length : at) + 1} of ${all.length}${rest}`;
      }
      return lab.document && lab.edited ? "settings changed since" : "";
    }

    function show() {
      if (!lab.scenario) return message();
      const all = runs(), of = lab.running() && lab.job && lab.job.title;
      Rose.write(title, of || lab.scenario.title);
      Rose.write(about, words(all));
      Rose.write(left, state(all));
      bars.style.gridTemplateColumns = `repeat(${all.length}, minmax(0, 1fr))`;
      bars.classList.toggle("rp-many", all.length > 10);
      bars.replaceChildren(...all.map((run) => bar(run, all.length <= 10)));
      name.hidden = !lab.document;
      if (lab.document && document.activeElement !== name) name.value = lab.document.name || "";
      message();
    }

    function message() {
      error.hidden = !lab.message;
      Rose.write(error, lab.message);
    }

    Rose.on("lab", (what) => (what === "message" ? message() : show()));
    show();
  };
})(window.Rose);
