/* Rose.lab: what the Lab knows, and its talk with the server. Every other lab*.js draws from here and listens to the event "lab":
 *
 *   "library"   the scenarios have come            .catalogue
 *   "plan"      what would be run has changed      .scenario .plan {A, B: {knobs, config}} .numbers .limits .edited
 *   "document"  another result is shown, or none   .document .serverId (null where the server may not have it)
 *   "summary"   its table was counted again        .document.summary
 *   "limits"    the promise has changed            .limits, at once; the table follows when the server has counted
 *   "numbers"   the boxes have to show others      .numbers
 *   "job"       a run has moved on                 .job
 *   "message"   there is something to say          .message */
"use strict";
(function (Rose) {
  const ARMS = ["A", "B"], RECOUNT_MS = 350, LAST = "roseplay-lab-scenario";
  const NUMBERS = ["seed", "repeats", "num_requests", "rate_per_s", "max_new_tokens"]; // in the order of the tab's boxes
  const latest = new Map(); // scenario -> its result of this visit

  const lab = (Rose.lab = {
    arms: ARMS, library: null, scenario: null, plan: null, numbers: { seed: 0, repeats: 3 }, limits: null, edited: false,
    document: null, serverId: null, job: null, message: "",
  });
  const tell = (what) => Rose.emit("lab", what);

  // ---- the server -------------------------------------------------------------------------------------------
  /** What `path` answers; throws an Error with the server's one sentence, and its status, where it refuses. */
  lab.ask = async function (path, body) {
    const post = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    let answer;
    try {
      answer = await fetch(`/ui/lab${path}`, body === undefined ? { cache: "no-store" } : post);
    } catch {
      throw new Error("The server does not answer. Is it still running?");
    }
    const found = await answer.json().catch(() => null);
    if (answer.ok && found !== null) return found;
    const said = sentence(found && found.detail) || `The server answered ${answer.status} to ${path || "the Lab"}.`;
    throw Object.assign(new Error(said), { status: answer.status });
  };

  const sentence = (detail) => (Array.isArray(detail) ? detail.map((one) => one.msg || String(one)).join("; ") : detail);

  /** Say something where the user looks: a refusal, or nothing (""). */
  lab.say = function (message) {
    lab.message = message instanceof Error ? message.message : message;
    tell("message");
  };

  let loading = null;

  /** Bring the scenarios, once; the newest result of this browser, or the one that the address names, is shown. */
  lab.load = function () {
    loading = loading || load();
    return loading;
  };

  async function load() {
    try {
      lab.catalogue = await lab.ask("");
    } catch (error) {
      loading = null;
      return lab.say(error);
    }
    lab.say("");
    tell("library");
    let last = null;
    try {
      last = localStorage.getItem(LAST);
    } catch {
      // a browser that keeps nothing begins with the first
    }
    lab.choose(find(last) ? last : lab.catalogue.scenarios[0].name);
    if (lab.catalogue.state) await lab.follow(lab.catalogue.state);
    if (!lab.document) await lab.restore();
  }

  const find = (name) => lab.catalogue.scenarios.find((scenario) => scenario.name === name);

  // ---- the plan ---------------------------------------------------------------------------------------------
  /** Choose a scenario by its name: its own settings, and what this visit has measured of it. */
  lab.choose = function (name) {
    const scenario = find(name);
    if (!scenario) return;
    try {
      localStorage.setItem(LAST, name);
    } catch {
      // then only for this visit
    }
    lab.say("");
    const known = latest.get(name);
    if (known) return lab.show(known.document, known.serverId, known.given);
    Object.assign(lab, { scenario, document: null, serverId: null, edited: false, limits: { ...(scenario.limits || lab.catalogue.limits) } });
    lab.plan = Object.fromEntries(ARMS.map((arm) => [arm, made(scenario.common, scenario[arm.toLowerCase()])]));
    const offered = Object.entries(scenario.params || {}).map(([key, offer]) => [key, initial(offer)]);
    lab.numbers = { ...Object.fromEntries(offered), seed: lab.numbers.seed, repeats: lab.numbers.repeats };
    tell("plan");
    tell("document");
  };

  const initial = (offer) => (offer !== null && typeof offer === "object" ? offer.default : offer);

  /* The settings of an arm: the defaults, what both arms share, its own. `given`: engine settings that were asked for. */
  function made(...layers) {
    const arm = { knobs: { ...lab.catalogue.knobs }, config: { ...lab.catalogue.engine }, given: new Set() };
    for (const { knobs = {}, config = {} } of layers.filter(Boolean)) {
      Object.assign(arm.knobs, knobs);
      Object.assign(arm.config, config);
      Object.keys(config).forEach((name) => arm.given.add(name));
    }
    return arm;
  }

  /** Set one value of one arm; `group` is "knobs" or "config". */
  lab.set = function (arm, group, name, value) {
    lab.plan[arm][group][name] = value;
    if (group === "config") lab.plan[arm].given.add(name);
    lab.edited = true;
    tell("plan");
  };

  lab.swap = function () {
    [lab.plan.A, lab.plan.B] = [lab.plan.B, lab.plan.A];
    lab.edited = true;
    tell("plan");
  };

  /** The boxes for numbers: their values as Gradio is to show them, and what was typed into them. */
  lab.boxes = () => [...NUMBERS.map((name) => lab.numbers[name] ?? null), lab.limits && lab.limits.ttft_ms, lab.limits && lab.limits.itl_ms];

  lab.typed = function (...values) {
    NUMBERS.forEach((name, i) => {
      if (name in lab.numbers && lab.numbers[name] !== values[i]) Object.assign(lab.numbers, { [name]: values[i] }), (lab.edited = true);
    });
    tell("typed");
  };

  /** What a run is asked for; throws an Error that says which number is missing. */
  lab.order = function () {
    for (const [name, value] of Object.entries(lab.numbers)) {
      if (typeof value !== "number") throw new Error(`${lab.words(name)} is empty: give a number.`);
    }
    const arm = ({ knobs: { slow_motion: refused, ...knobs }, config, given }) => ({
      knobs, config: Object.fromEntries([...given].map((name) => [name, config[name]])),
    });
    const { seed, repeats, ...params } = lab.numbers;
    return { scenario: lab.scenario.name, a: arm(lab.plan.A), b: arm(lab.plan.B), seed, repeats, params, limits: lab.limits, name: null };
  };

  const WORDS = { seed: "Seed", repeats: "Repeats", num_requests: "Requests", rate_per_s: "Rate", max_new_tokens: "Answer" };
  lab.words = (name) => WORDS[name] || name.replace(/_/g, " ");

  // ---- the result shown -------------------------------------------------------------------------------------
  /** Show a document: its scenario, settings and numbers become the plan. `given`: {A, B}, the engine settings that its run was
   * asked for. Not known of another's document: then the size of the pool is left to the lab, which fits it to the load. */
  lab.show = function (document, serverId, given = null) {
    if (!document || document.roseplay_lab !== 1) return lab.say("This is not a result of the Lab.");
    lab.scenario = find(document.scenario) || { name: document.scenario, title: document.title, params: document.params, look: document.look };
    Object.assign(lab, { document, serverId, edited: false, limits: { ...document.limits } });
    lab.plan = Object.fromEntries(ARMS.map((arm) => [arm, made(document.arms[arm])]));
    for (const arm of ARMS) lab.plan[arm].given = given ? given[arm] : asked(arm, document);
    lab.numbers = { ...document.params, seed: document.seed, repeats: document.repeats };
    latest.set(document.scenario, { document, serverId, given });
    tell("plan");
    tell("document");
  };

  /* What has to be said for an arm to be again what it was: what differs from the other arm or from this server's engine. */
  function asked(arm, { arms }) {
    const { common, a, b } = lab.scenario, own = arms[arm].config, layers = [common, a, b];
    return new Set(Object.keys(own).filter((name) => {
      if (arms.A.config[name] !== arms.B.config[name] || layers.some((layer) => layer && layer.config && name in layer.config)) return true;
      return name !== "num_blocks" && own[name] !== lab.catalogue.engine[name];
    }));
  }

  /** See that the server has the shown result too, and answer its id there. */
  lab.onServer = async function () {
    const { document } = lab;
    if (lab.serverId) return lab.serverId;
    const { id } = await lab.ask("/open", document);
    if (lab.document === document) Object.assign(lab, { serverId: id });
    return id;
  };

  /** The result is not the one any more that the server has: it has got another name or promise. */
  lab.changed = function (document) {
    if (lab.document === document) lab.serverId = null;
    for (const known of latest.values()) if (known.document === document) known.serverId = null;
  };

  /** Forget what this visit has shown of a result. */
  lab.forget = function (id) {
    for (const [name, { document }] of latest) if (document.id === id) latest.delete(name);
  };

  /** Another promise: what is counted here follows at once, the table when the server has counted again. */
  lab.promise = function (ttft, itl) {
    if (!(ttft > 0 && itl > 0)) return;
    lab.limits = { ttft_ms: ttft, itl_ms: itl };
    tell("limits");
    clearTimeout(recounting);
    if (lab.document) recounting = setTimeout(recount, RECOUNT_MS);
  };

  let recounting = 0;
  async function recount() {
    const { document, limits } = lab;
    try {
      const summary = await lab.ask("/summary", lab.serverId ? { id: lab.serverId, limits } : { document, limits });
      if (lab.document !== document || lab.limits !== limits) return; // overtaken by another one
      Object.assign(document, { limits, summary });
      lab.changed(document);
      lab.say("");
      tell("summary");
    } catch (error) {
      lab.say(error);
    }
  }

  /** Requests that keep the promise, of those of an arm: {kept, all}. */
  lab.keptOf = function (arm) {
    const all = lab.document.runs.filter((run) => run.arm === arm).flatMap((run) => run.requests);
    return { kept: all.filter(lab.keeps).length, all: all.length };
  };

  lab.keeps = ({ reason, ttft_ms: ttft, itl_p99_ms: itl }) =>
    (reason === "stop" || reason === "length") && ttft !== null && ttft <= lab.limits.ttft_ms && (itl === null || itl <= lab.limits.itl_ms);

  /** The run of an arm whose duration is the median one. */
  lab.typical = function (arm) {
    const runs = lab.document.runs.filter((run) => run.arm === arm).sort((a, b) => a.seconds - b.seconds);
    return runs[Math.floor((runs.length - 1) / 2)];
  };

  /** What a word of the Lab means. */
  lab.meaning = (name) => window.RoseLabTerms[name] || window.RoseLabTerms[name.split("_")[0]] || "";
})(window.Rose);
