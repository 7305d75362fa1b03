/* Rose.stepTable: what the step timeline shows, a line a request in view. `visible()` are those requests, `rows` whose row is whose. */
"use strict";
(function (Rose) {
  const COLUMNS = [
    ["request", "Its number, and the lane that it answers in."], ["state"], ["prompt", "Prompt tokens."],
    ["cached", "Prompt tokens found in the prefix cache."], ["shared", "Prompt tokens that another request of the same step computed."],
    ["tokens", "Tokens generated so far."], ["TTFT", "Time to first token, ms."], ["ITL p50", "Median inter-token latency, ms."],
    ["preempted", "Times that it lost its blocks to another."],
  ];
  const ENDS = { stop: "done", length: "done", abort: "stopped", error: "failed" };

  function stateOf(known) {
    if (known.finished !== null || known.reason) return ENDS[known.reason] || known.reason || "done";
    if (known.preempted.length > known.resumed.length) return "preempted";
    if (known.scheduled === null && !known.computed) return "queued";
    return known.computed < known.target ? "prompt" : "decode";
  }

  /* Tokens and gaps of some requests, of the tokens that are kept: Map rid -> {count, gaps}. */
  function answers(wanted) {
    const { tokens } = Rose.store, found = new Map(wanted.map(({ rid }) => [rid, { count: 0, gaps: [] }]));
    for (let i = tokens.first; i < tokens.end; i++) {
      const slot = i & tokens.mask, own = found.get(tokens.rid[slot]);
      if (!own) continue;
      own.count++;
      if (tokens.itl[slot] >= 0) own.gaps.push(tokens.itl[slot]);
    }
    return found;
  }

  Rose.stepTable = function (rows, visible) {
    const { count, ms } = Rose.format;

    function read() {
      const known = visible().sort((a, b) => rows.of(a) - rows.of(b) || a.submitted - b.submitted), given = answers(known);
      const unfinished = known.filter((one) => one.finished === null).length;
      return {
        caption: `${count(known.length)} request${known.length === 1 ? "" : "s"} in view, ${count(unfinished)} unfinished. Times in ms.`,
        rows: known.map((one) => {
          const { count: tokens, gaps } = given.get(one.rid);
          const p50 = gaps.length ? Rose.quantile(Float64Array.from(gaps).sort(), 0.5) : null;
          return [
            `#${one.rid}${one.lane === null ? "" : ` lane ${one.lane}`}`, stateOf(one), count(one.prompt), count(one.cached), count(one.shared),
            count(Math.max(tokens, one.tokens)), ms(one.ttft), ms(p50), count(one.preempted.length),
          ];
        }),
      };
    }

    return Rose.asTable({ name: "Steps as a table", columns: COLUMNS, read });
  };
})(window.Rose);
