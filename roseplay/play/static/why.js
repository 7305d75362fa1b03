/* "Why was this token slow?": what Rose.store knows of a selected token, said beside the point that was clicked.
 *
 *   Rose.why(rid, step)   {title, sentence, step, token, facts} of a token, or of a step without one; null when it is no longer kept
 * The first cause that applies is told: a preemption, steps it was left out of, prompts in its step, copied blocks, a large batch.
 * "instead of" is the median gap of the tokens around it whose steps computed no prompts; without any there is no such clause. */
"use strict";
(function (Rose) {
  const AROUND_MS = 15000, LEAST_GAPS = 5, SLOW = 1.5, LARGE_BATCH = 1.5, MOST_NAMED = 3;
  const { count } = Rose.format;
  const ms = (v) => (v < 9.95 ? v.toFixed(1) : count(v));
  const many = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

  // ---- what is known ----------------------------------------------------------------------------------------
  /** The newest token of a request in a step: {t, itl, number (null if its first ones are no longer kept)}, or null. */
  function tokenOf(rid, step) {
    const { tokens } = Rose.store;
    let found = null, number = 0, whole = false;
    for (let i = tokens.first; i < tokens.end; i++) {
      const slot = i & tokens.mask;
      if (tokens.rid[slot] !== rid || tokens.step[slot] > step) continue;
      if (Number.isNaN(tokens.itl[slot])) whole = true;
      number++;
      if (tokens.step[slot] === step) found = { t: tokens.t[slot], itl: tokens.itl[slot], number };
    }
    if (found && !whole) found.number = null;
    return found;
  }

  function entriesOf(slot) {
    const { steps, entries } = Rose.store, list = [];
    for (let k = 0, e = steps.entry[slot]; k < steps.entries[slot]; k++, e++) {
      const at = e & entries.mask;
      if (e >= entries.first) list.push({ rid: entries.rid[at], prompt: entries.prompt[at], decode: entries.decode[at], cached: entries.cached[at], shared: entries.shared[at] });
    }
    return list;
  }

  /* Median gap and batch around a moment, of steps without prompt tokens; null where there were too few. */
  function usual(t) {
    const { tokens, steps, stepRow } = Rose.store, gaps = [], batches = [];
    let last = null, counts = false, batch = 0;
    for (let i = tokens.end - 1; i >= tokens.first; i--) {
      const slot = i & tokens.mask;
      if (tokens.t[slot] > t + AROUND_MS) continue;
      if (tokens.t[slot] < t - AROUND_MS) break;
      if (tokens.step[slot] !== last) {
        last = tokens.step[slot];
        const row = stepRow(last);
        counts = row >= 0 && steps.prompt[row & steps.mask] === 0;
        batch = counts ? steps.decode[row & steps.mask] : 0;
      }
      if (!counts || !(tokens.itl[slot] >= 0)) continue;
      gaps.push(tokens.itl[slot]);
      batches.push(batch); // one for each gap, so that both medians are of the same tokens
    }
    const median = (list) => Rose.quantile(Float64Array.from(list).sort(), 0.5);
    return gaps.length < LEAST_GAPS ? null : { itl: median(gaps), batch: median(batches) };
  }

  /* Steps that began and ended within the gap and computed others only. */
  function leftOut(rid, token, row) {
    const { steps } = Rose.store;
    let n = 0;
    for (let i = row - 1; i >= steps.first && steps.t0[i & steps.mask] >= token.t - token.itl - 1; i--)
      if (entriesOf(i & steps.mask).every((entry) => entry.rid !== rid)) n++;
    return n;
  }

  function settingAt(name, t) {
    const changed = Rose.store.marks.find((mark) => mark.t > t && name in mark.changes);
    return changed ? changed.changes[name][0] : Rose.store.knobs[name];
  }

  // ---- one sentence -----------------------------------------------------------------------------------------
  /* Parts of a sentence: words, {bold}, or {rid}. */
  const bold = (words) => ({ bold: words });

  function names(rids) {
    const parts = [], shown = rids.length > MOST_NAMED + 1 ? rids.slice(0, MOST_NAMED) : rids;
    shown.forEach((rid, i) => parts.push(i === 0 ? " " : i === rids.length - 1 ? " and " : ", ", { rid }));
    if (shown.length < rids.length) parts.push(` and ${rids.length - shown.length} more`);
    return parts;
  }

  function sentence(found) {
    const { token, known, step, entries, normal } = found;
    if (!token) return ofStep(found);
    if (Number.isNaN(token.itl)) return ofFirst(found);
    const instead = normal ? ` instead of ${ms(normal.itl)}.` : ".", took = bold(`${ms(token.itl)} ms`);
    const preempted = known ? known.preempted.findIndex((t) => t <= token.t && t >= token.t - token.itl) : -1;
    if (preempted >= 0) {
      const waited = (known.resumed[preempted] ?? step.t0) - known.preempted[preempted];
      return ["The KV pool was full: it was preempted, waited ", bold(`${ms(Math.max(0, waited))} ms`), " and was computed again, so this token took ", took, instead];
    }
    const others = entries.filter((entry) => entry.prompt > 0 && entry.rid !== found.rid).map((entry) => entry.rid);
    if (found.leftOut > 0) return ["It was left out of ", bold(many(found.leftOut, "step")), " that computed others, so it took ", took, instead];
    if (step.prompt > 0 && others.length) return ["Its step also computed ", bold(`${many(step.prompt, "prompt token")}`), " for", ...names(others), ", so it took ", took, instead];
    if (normal && token.itl <= normal.itl * SLOW) return ["Nothing unusual: it took ", took, ", and the usual is ", bold(`${ms(normal.itl)} ms`), "."];
    if (step.copies > 0) return ["Its step copied ", bold(many(step.copies, "block")), " before writing, and it took ", took, instead];
    if (normal && step.decode > normal.batch * LARGE_BATCH) return ["Its step decoded for ", bold(many(step.decode, "request")), ` instead of ${count(normal.batch)}, and it took `, took, instead];
    return ["Nothing in its step explains it: it took ", took, normal ? ` instead of ${ms(normal.itl)}, ` : ", ", bold(`${ms(step.device)} ms`), " of it in the model."];
  }

  function ofFirst({ token, known, step }) {
    if (!known || known.ttft === null) return ["It is the first token of its answer: its step took ", bold(`${ms(step.t1 - step.t0)} ms`), " and computed ", bold(many(step.prompt, "prompt token")), "."];
    const queue = known.queue === null ? "" : `${ms(known.queue)} ms`;
    return ["The first token came after ", bold(`${ms(known.ttft)} ms`), ...(queue ? [", of which it waited ", bold(queue), " for its turn."] : ["."])];
  }

  function ofStep({ rid, step, entries }) {
    const own = entries.find((entry) => entry.rid === rid);
    return ["This step computed ", bold(many(own ? own.prompt : 0, "prompt token")), " of it and took ", bold(`${ms(step.t1 - step.t0)} ms`), "; no token came of that."];
  }

  Rose.why = function (rid, stepId) {
    const { steps, requests, stepRow } = Rose.store, row = stepRow(stepId), slot = row & steps.mask;
    if (row < 0) return null;
    const step = { id: stepId };
    for (const name of ["t0", "t1", "prompt", "decode", "copies", "device", "host", "graph"]) step[name] = steps[name][slot];
    const token = tokenOf(rid, stepId), known = requests.get(rid) || null;
    const found = { rid, step, token, known, entries: entriesOf(slot), normal: usual(step.t1), leftOut: 0, factor: settingAt("slow_motion", step.t1) };
    const gap = token && !Number.isNaN(token.itl);
    if (gap) found.leftOut = leftOut(rid, token, row);
    const slow = gap && found.normal && token.itl > found.normal.itl * SLOW;
    const title = !token ? "What did this step compute?" : !gap ? "Why did the first token take so long?" : slow || !found.normal ? "Why was this token slow?" : "Was this token slow?";
    const words = sentence(found);
    if (found.factor > 1) words.push(` Slow motion makes every step ×${found.factor} as long.`);
    return { ...found, title, sentence: words, facts: facts(found) };
  };

  // ---- figures ----------------------------------------------------------------------------------------------
  function facts({ rid, token, known, step, entries, factor }) {
    const prompts = entries.filter((entry) => entry.prompt > 0).length, { steps } = Rose.store;
    const slot = Rose.store.stepRow(step.id) & steps.mask;
    const who = known && known.lane !== null ? `lane ${known.lane}` : null;
    return [
      ["token", [who || { rid }, token && token.number ? ` · ${count(token.number)}` : ""]],
      [`step ${count(step.id)}`, [`${count(step.decode)} decode${prompts ? ` + ${many(prompts, "prompt")}` : ""}`]],
      ["queue wait", [known && known.queue !== null ? `${ms(known.queue)} ms` : "–"]],
      ["preempted", [known && known.preempted.length ? (known.preempted.length === 1 ? "once" : `${known.preempted.length} times`) : "no"]],
      ["cached, shared", [`${count(steps.cached[slot])}, ${count(steps.shared[slot])} prompt tokens`]],
      [factor > 1 ? "host + sleep, device" : "host, device", [`${ms(step.host)}, ${ms(step.device)} ms`]],
      ...(step.graph === null ? [] : [["computed", [step.graph ? "as a replay" : "eagerly"]]]),
    ];
  }

  // ---- showing it -------------------------------------------------------------------------------------------
  let at = { x: innerWidth / 2, y: innerHeight / 2 };
  document.addEventListener("pointerdown", ({ clientX, clientY }) => {
    at = { x: clientX, y: clientY };
  }, true);

  const { element, row, facts: list, request } = Rose.popover;
  const part = (one) => (typeof one === "string" ? one : one.bold ? element("b", "", one.bold.replace(/ ms$/, "\u00a0ms")) : request(one.rid));

  /* The step as one bar: its decode tokens, then its prompt tokens. */
  function bar({ decode, prompt }) {
    const track = element("div", "rp-share", element("i", ""), element("i", ""));
    track.setAttribute("aria-hidden", "true");
    [decode, prompt].forEach((n, i) => {
      track.children[i].style.width = `${(100 * n) / Math.max(1, decode + prompt)}%`;
    });
    return [track, element("div", "rp-shares", element("span", "", `${count(decode)} decode`), element("span", "", `${count(prompt)} prompt`))];
  }

  /* Of a token whose step is no longer kept, its lane knows the gap. */
  function past({ itl, p50 }) {
    const took = Number.isNaN(itl) || itl === undefined ? [] : ["It took ", bold(`${ms(itl)} ms`), ...(p50 ? [`; the median of its answer is ${ms(p50)}`] : []), ". "];
    return element("p", "", ...[...took, "Its step is no longer kept, so nothing more is known."].map(part));
  }

  let another = false;

  Rose.on("select", (what) => {
    if (!what) {
      if (Rose.popover.name === "why") Rose.popover.close();
      return;
    }
    const answer = what.step === null ? null : Rose.why(what.rid, what.step);
    if (!answer && what.token === undefined) return;
    another = true; // what closes now is the one before: its place is taken, not given up
    Rose.popover.open({
      name: "why", title: answer ? answer.title : "Was this token slow?", stays: true, x: what.x ?? at.x, y: what.y ?? at.y,
      fill(body) {
        if (!answer) return body.append(past(what));
        body.append(element("p", "", ...answer.sentence.map(part)), ...bar(answer.step), list(...answer.facts.map(([name, value]) => row(name, ...value.map(part)))));
      },
      closed: () => another || Rose.emit("select", null),
    });
    another = false;
  });
})(window.Rose);
