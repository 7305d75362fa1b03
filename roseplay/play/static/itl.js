/* Rose.itl: inter-token latency, a dot a token, over the last 15 s of work; from Rose.store.tokens and .steps.
 *
 * In a batch all tokens of a step wait equally long, so the usual ones are one small grey dot a step (a lane's in its hue); the slow
 * ones are larger, in their request's hue, and spread across their step by slot, or they would hide each other.
 * p50, p95 and p99 are of all gaps in the window. What lies beyond the axis is a triangle with its value and cause. */
"use strict";
(function (Rose) {
  const MOST_POINTS = 4000;
  const SLOW_OF_P95 = 0.55, SLOW_OF_P50 = 1.5; // a slow token is beyond both
  const LABEL_PX = 22, CALM_MS = 1500; // the axis shrinks only when it could have for this long
  const LINES = [["p50", 0.5, "solid"], ["p95", 0.95, "4px,3px"], ["p99", 0.99, "1.5px,2.5px"]];

  Rose.itl = function (element) {
    const scale = { log: false, zoom: null, max: 0, calm: 0 };
    const toggle = Rose.toggle("y axis", ["lin", "log"]);
    let points = []; // by trace: [{rid, …}]
    let summary = "No tokens yet.";

    const panel = Rose.chart(element, {
      name: "itl", hz: 4, timed: true, flags: true, follows: true, margin: { l: 38, r: 48, t: 22, b: 20 },
      legend: Rose.legend(Rose.legendDot("ink2"), "slow, by request") + toggle.html,
      hover: ({ curveNumber, pointNumber }) => points[curveNumber][pointNumber],
      zoomedY: (range) => {
        scale.zoom = range;
      },
      draw, describe: () => `Inter-token latency. ${summary}`,
    });
    toggle.bind(element, (word) => {
      scale.log = word === "log";
      scale.zoom = null;
      panel.soon();
    });
    Rose.on("unzoom", () => {
      scale.zoom = null;
    });

    function draw(frame) {
      const gaps = collect(frame.window);
      if (!gaps.length) {
        summary = "No tokens in view.";
        return { empty: true, traces: [], layout: { yaxis: yAxis({ max: 160, p: [] }, frame) } };
      }
      const sorted = Float32Array.from(gaps, (gap) => gap.itl).sort();
      const p = LINES.map(([, q]) => Rose.quantile(sorted, q));
      summary = `p50 ${Rose.ms(p[0])} ms, p95 ${Rose.ms(p[1])} ms, p99 ${Rose.ms(p[2])} ms, longest ${Rose.ms(sorted[sorted.length - 1])} ms, of ${gaps.length} tokens.`;
      const range = { max: top(p[2], frame), least: sorted[0], most: sorted[sorted.length - 1], p };
      const yaxis = yAxis(range, frame);
      const limit = scale.log ? Infinity : yaxis.range[1];
      const groups = group(gaps, Math.max(p[1] * SLOW_OF_P95, p[0] * SLOW_OF_P50), p[1], limit);
      const layout = { yaxis, shapes: [], annotations: [] };
      addLines(layout, p, yaxis, frame);
      const beyond = outside(gaps, limit, frame);
      addBeyond(layout, beyond, frame);
      points = groups.map((one) => one.gaps);
      const traces = groups.map((one) => trace(one, frame.T));
      addSelected(traces, layout, gaps, limit, frame);
      return { traces, layout };
    }

    /* Every gap in the window: {rid, step, itl, x (s of view time), slot, of}. Tokens of one step stand together in the ring. */
    function collect({ x0, x1 }) {
      const { tokens, steps } = Rose.store, gaps = [];
      let i = tokens.end - 1;
      while (i >= tokens.first) {
        const step = tokens.step[i & tokens.mask];
        let from = i;
        while (from - 1 >= tokens.first && tokens.step[(from - 1) & tokens.mask] === step) from--;
        const end = Rose.time.x(tokens.t[i & tokens.mask]);
        if (end < x0) break;
        const row = Rose.store.stepRow(step) & steps.mask;
        const known = row >= 0 && steps.step[row] === step;
        const took = known ? steps.t1[row] - steps.t0[row] : 0;
        const of = i - from + 1;
        for (let k = from; k <= i && end <= x1; k++) {
          const slot = k & tokens.mask;
          if (!(tokens.itl[slot] >= 0)) continue;
          const across = took * (0.9 - (0.8 * (k - from + 0.5)) / of);
          gaps.push({ rid: tokens.rid[slot], step, itl: tokens.itl[slot], t: tokens.t[slot], x: (end - across) / 1000, end: end / 1000 });
        }
        i = from - 1;
      }
      return gaps;
    }

    /* Dots by how they look: {hue: 0–7 or null for grey, slow, gaps}. */
    function group(gaps, slow, p95, limit) {
      const usual = new Map(), large = new Map();
      const put = (map, key, gap) => (map.get(key) || map.set(key, []).get(key)).push(gap);
      let lastStep = null, kept = new Set();
      const least = gaps.filter((gap) => gap.itl > slow).length;
      const stride = Math.ceil(Math.max(1, least / (MOST_POINTS * 0.6)));
      let n = 0;
      for (const gap of gaps) {
        if (gap.itl > limit) continue;
        if (gap.itl > slow) {
          if (gap.itl > p95 || n++ % stride === 0) put(large, Rose.hue(gap.rid), gap);
          continue;
        }
        const known = Rose.store.requests.get(gap.rid);
        if (known && known.lane !== null) {
          put(usual, Rose.hue(gap.rid), gap);
          continue;
        }
        if (gap.step !== lastStep) {
          lastStep = gap.step;
          kept = new Set();
        }
        const height = Math.round(gap.itl * 2); // within a step, dots of one height are one dot
        if (kept.has(height)) continue;
        kept.add(height);
        put(usual, null, gap);
      }
      const groups = [];
      for (const [hue, list] of usual) groups.push({ hue, slow: false, gaps: thin(list, MOST_POINTS * 0.4 / usual.size) });
      for (const [hue, list] of large) groups.push({ hue, slow: true, gaps: list });
      return groups.sort((a, b) => a.slow - b.slow || (a.hue ?? -1) - (b.hue ?? -1));
    }

    function thin(list, most) {
      const stride = Math.ceil(list.length / most);
      return stride > 1 ? list.filter((gap) => gap.step % stride === 0) : list; // by step, so that the same ones stay
    }

    function trace({ hue, slow, gaps }, T) {
      const color = hue === null ? T.ink3 : T.hues[hue];
      let opacity = slow || hue !== null ? 0.9 : 0.38;
      if (Rose.hovered !== null) {
        const his = gaps.some((gap) => gap.rid === Rose.hovered);
        if (!his) opacity *= 0.25;
        else gaps = gaps.filter((gap) => gap.rid === Rose.hovered);
      }
      return {
        type: "scattergl", mode: "markers", x: Float64Array.from(gaps, (gap) => gap.x), y: Float32Array.from(gaps, (gap) => gap.itl),
        marker: { color, opacity, size: slow ? 4 : 2, line: { width: 0 } }, hoverinfo: slow ? "none" : "skip", showlegend: false,
      };
    }

    // ---- axis -----------------------------------------------------------------------------------------------
    function top(p99, { window }) {
      const wanted = Rose.axis(p99 * 1.06, 4).max;
      const calm = wanted < scale.max && window.live && performance.now() - scale.calm < CALM_MS;
      if (wanted >= scale.max) scale.calm = performance.now();
      if (!calm) scale.max = wanted;
      return scale.max;
    }

    function yAxis({ max, least, most, p }) {
      if (scale.log && p.length) {
        const low = Math.floor(Math.log10(Math.max(0.05, least)) * 2) / 2, high = Math.log10(most * 1.15);
        const tickvals = [];
        for (let power = Math.floor(low); power <= high; power++)
          for (const n of high - low > 2.2 ? [1] : [1, 2, 5]) if (n * 10 ** power >= 10 ** low) tickvals.push(n * 10 ** power);
        return { type: "log", range: scale.zoom || [low, high], tickmode: "array", tickvals, ticktext: tickvals.map(String), fixedrange: false };
      }
      const range = scale.zoom || [0, max];
      const step = Rose.axis(range[1] - range[0], 4).step;
      return { type: "linear", range, tickmode: "linear", tick0: 0, dtick: step, fixedrange: false };
    }

    const place = (yaxis, v) => ((yaxis.type === "log" ? Math.log10(v) : v) - yaxis.range[0]) / (yaxis.range[1] - yaxis.range[0]);

    function addLines(layout, p, yaxis, { height, T }) {
      const shown = LINES.map(([name, , dash], i) => ({ name, dash, v: p[i], at: place(yaxis, p[i]) * height })).filter((one) => one.at >= 0 && one.at <= height + 1);
      const labels = spread(shown.map((one) => one.at), LABEL_PX, height);
      shown.forEach(({ name, dash, v, at }, i) => {
        layout.shapes.push({
          name, type: "line", xref: "paper", x0: 0, x1: 1, y0: v, y1: v, line: { color: name === "p50" ? T.ink : T.ink2, width: 1, dash }, layer: "between",
        });
        const y = yaxis.type === "log" ? Math.log10(v) : v; // annotations on a log axis are placed by exponent
        layout.annotations.push({ ...Rose.lineLabel(T, y, name, Rose.ms(v), T.ink, labels[i] - at), name });
      });
    }

    /** Heights (rising) moved up, and down again where the plot ends, until they are `least` apart. */
    function spread(heights, least, height) {
      const out = heights.slice();
      for (let i = 1; i < out.length; i++) out[i] = Math.max(out[i], out[i - 1] + least);
      for (let i = out.length - 1, most = height + 6; i >= 0; i--, most -= least) out[i] = Math.min(out[i], most);
      return out;
    }

    // ---- what lies beyond ------------------------------------------------------------------------------------
    const APART_PX = 90, MOST_TRIANGLES = 3;

    /* The longest gaps over the limit, far enough apart to be labelled. */
    function outside(gaps, limit, { window, width }) {
      const perS = (width / (window.x1 - window.x0)) * 1000, kept = [];
      for (const gap of gaps.filter((one) => one.itl > limit).sort((a, b) => b.itl - a.itl)) {
        if (kept.length === MOST_TRIANGLES) break;
        if (kept.every((other) => Math.abs(other.x - gap.x) * perS > APART_PX)) kept.push(gap);
      }
      return kept;
    }

    function addBeyond(layout, gaps, { T, window }) {
      const middle = (window.x0 + window.x1) / 2000;
      for (const gap of gaps) {
        const right = gap.x < middle;
        layout.shapes.push({
          name: "beyond", type: "path", path: "M0,0 L4,-6 L-4,-6 Z", xsizemode: "pixel", ysizemode: "pixel", xanchor: gap.x, yref: "paper", yanchor: 1,
          fillcolor: T.ink, line: { width: 0 },
        });
        const why = cause(gap);
        layout.annotations.push({
          name: "beyond", text: `<b>${Math.round(gap.itl)}</b>${why ? ` ${why}` : ""}`, x: gap.x, yref: "paper", y: 1, yanchor: "top", yshift: 4,
          xanchor: right ? "left" : "right", xshift: right ? 6 : -6, showarrow: false, font: { color: T.ink, size: 10 }, bgcolor: Rose.fade(T.surface, 0.85), borderpad: 0,
        });
      }
    }

    function cause(gap) {
      const known = Rose.store.requests.get(gap.rid);
      if (known && known.preempted.some((t) => t <= gap.t && t >= gap.t - gap.itl)) return "preempted";
      const { steps } = Rose.store, row = Rose.store.stepRow(gap.step);
      const prompt = row < 0 ? 0 : steps.prompt[row & steps.mask];
      return prompt ? `with ${prompt} prompt` : "";
    }

    // ---- the selected token ----------------------------------------------------------------------------------
    function addSelected(traces, layout, gaps, limit, { T }) {
      const chosen = Rose.selected && gaps.find((gap) => gap.rid === Rose.selected.rid && gap.step === Rose.selected.step);
      if (!chosen || chosen.itl > limit) return;
      const y0 = scale.log ? 10 ** layout.yaxis.range[0] : layout.yaxis.range[0];
      layout.shapes.push({ name: "stem", type: "line", x0: chosen.x, x1: chosen.x, y0, y1: chosen.itl, line: { color: T.ink, width: 1, dash: "1px,2px" } });
      for (const [color, size, width] of [[T.surface, 11, 1.5], [Rose.color(chosen.rid), 5, 0]])
        traces.push({
          type: "scattergl", mode: "markers", x: [chosen.x], y: [chosen.itl], hoverinfo: "skip", marker: { color, size, line: { color: T.ink, width } },
        });
    }
  };

  Rose.selected = null; // {rid, step} of a token, or null
  Rose.on("select", (what) => {
    Rose.selected = what;
  });
})(window.Rose);
