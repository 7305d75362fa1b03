/* Rose.gaps: the inter-token latencies in a stretch of time, for the header's figures and for the chart, which must say the same. */
"use strict";
(function (Rose) {
  const seen = new Float32Array(Rose.store.tokens.capacity);

  /** {runs, sorted} of {x0, x1} in view time. `sorted`: all gaps in ms. `runs`: one a step (its tokens stand together in the ring), newest
   * first: {from, to (ring rows), step, end (view ms), took}. */
  Rose.gaps = function ({ x0, x1 }) {
    const { tokens, steps, stepRow } = Rose.store, runs = [];
    let n = 0;
    for (let to = tokens.end - 1, from; to >= tokens.first; to = from - 1) {
      const step = tokens.step[to & tokens.mask];
      for (from = to; from > tokens.first && tokens.step[(from - 1) & tokens.mask] === step; from--);
      const end = Rose.time.x(tokens.t[to & tokens.mask]);
      if (end < x0) break;
      if (end > x1) continue;
      const row = stepRow(step);
      runs.push({ from, to, step, end, took: row < 0 ? 0 : steps.t1[row & steps.mask] - steps.t0[row & steps.mask] });
      for (let i = from; i <= to; i++) if (tokens.itl[i & tokens.mask] >= 0) seen[n++] = tokens.itl[i & tokens.mask];
    }
    return { runs, sorted: seen.slice(0, n).sort() };
  };
})(window.Rose);
