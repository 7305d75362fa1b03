/* Rose.lab.itl and Rose.lab.ttft: the two distributions of a result, A solid over B dashed, each repeat thin and all of them
 * together strong, so that the spread between repeats can be told from the difference between arms.
 *
 *   itl    a tail plot: the share of gaps on -log10(1 - p), so that p99.9 has as much room as p50; gaps on a log scale
 *   ttft   the usual CDF, or a histogram */
"use strict";
(function (Rose) {
  const { lab } = Rose;
  const MARGIN = { l: 44, r: 14, t: 8, b: 18 };
  const { ms } = Rose.format;

  /* {A: {pooled, repeats}, B: …}: sorted values of an arm, of all repeats and of each. */
  function collect(values) {
    return Object.fromEntries(lab.arms.map((arm) => {
      const repeats = lab.document.runs.filter((run) => run.arm === arm).map((run) => lab.ascending(values(run)));
      return [arm, { repeats, pooled: Float64Array.from(repeats.flatMap((one) => [...one])).sort() }];
    }));
  }

  /* Collected once a result. */
  function remembered(values) {
    let of = null, found = null;
    return () => {
      if (of !== lab.document) [of, found] = [lab.document, collect(values)];
      return found;
    };
  }

  const last = (sorted) => sorted[sorted.length - 1];
  const both = (arms, say) => lab.arms.map((arm) => `${arm} ${arms[arm].pooled.length ? say(arms[arm].pooled) : "–"}`).join(" · ");

  // ---- inter-token latency ----------------------------------------------------------------------------------
  const LEVELS = [["0", 0], ["p50", 0.5], ["p90", 0.9], ["p99", 0.99], ["p99.9", 0.999], ["p99.99", 0.9999]];
  const height = (p) => -Math.log10(1 - p);

  lab.itl = function (element) {
    const gaps = remembered((run) => run.itl_ms);
    const view = lab.canvas(element, {
      name: "Inter-token latency", margin: MARGIN, draw, read, describe,
      keys: { ArrowUp: (point, area) => step(point, area, -6), ArrowDown: (point, area) => step(point, area, 6) },
    });
    view.subtitle = "gaps at most this long; both axes log, the tail on top";
    legend(element);

    function step(point, area, by) {
      const y = point ? point.y + by : (area.y0 + area.y1) / 2;
      return { x: area.x0, y: Math.max(area.y0, Math.min(area.y1, y)) };
    }

    /* The axes: gaps on x from `low` to `high`, the tail on y up to `top`; of no result, a drawing without one. */
    function axes(area) {
      const arms = lab.document ? gaps() : null;
      const filled = arms ? lab.arms.map((arm) => arms[arm].pooled).filter((all) => all.length) : [];
      const most = Math.max(2, ...filled.map((all) => all.length));
      const low = filled.length ? Math.min(...filled.map((all) => Math.max(0.01, Rose.quantile(all, 0.02)))) / 1.15 : 1;
      const high = Math.max(low * 10, ...filled.map(last), filled.length ? lab.limits.itl_ms : 1000) * 1.15;
      const top = Math.max(2.2, Math.min(4.3, Math.log10(most) + 0.05));
      const x = (value) => area.x0 + (Math.log(Math.max(low, value) / low) / Math.log(high / low)) * area.width;
      const y = (tail) => area.y1 - (Math.min(top, tail) / top) * area.height;
      return { arms, low, high, top, x, y };
    }

    /* A pixel row at a time: which gap is as long as this share of them at most. */
    function outline(sorted, { top, x }, area) {
      const points = [];
      for (let y = area.y1; y >= area.y0; y -= 0.5) {
        const tail = ((area.y1 - y) / area.height) * top, i = Math.floor((1 - 10 ** -tail) * sorted.length);
        points.push([x(sorted[Math.min(i, sorted.length - 1)]), y]);
        if (i >= sorted.length - 1) break;
      }
      points.push([x(last(sorted)), area.y0]);
      return points;
    }

    function draw(pen, area, T) {
      const scale = axes(area);
      grid(pen, area, scale, T);
      if (!scale.arms) return;
      limit(pen, scale.x(lab.limits.itl_ms), `limit ${lab.limits.itl_ms}`, area, T);
      for (const arm of lab.arms) {
        const { repeats, pooled } = scale.arms[arm], look = lab.look(arm, T);
        if (!pooled.length) continue;
        if (repeats.length > 1) for (const one of repeats) if (one.length) lab.stroke(pen, outline(one, scale, area), look, false);
        lab.stroke(pen, outline(pooled, scale, area), look, true);
      }
      worst(pen, scale, area, T);
    }

    function grid(pen, area, { low, high, top, x, y }, T) {
      for (const [name, p] of LEVELS) {
        if (height(p) > top - 0.02) continue;
        const at = Rose.sharp(y(height(p)));
        pen.line(area.x0, at, area.x1, at, p ? T.grid : T.line2);
        pen.text(name, area.x0 - 6, at + 3.5, T.ink3, "right");
      }
      const ticks = lab.logTicks(low, high, area.width / 56);
      ticks.forEach((value, i) => {
        const at = Rose.sharp(x(value)), unit = i === ticks.length - 1;
        pen.line(at, area.y0, at, area.y1, T.grid);
        const right = unit && at > area.x1 - 24;
        pen.text(`${lab.short(value)}${unit ? " ms" : ""}`, right ? area.x1 + 10 : at, area.y1 + 13, T.ink3, right ? "right" : "center");
      });
    }

    /* The longest gap of each arm, named at the top; on the second line where there is no room beside the other. */
    function worst(pen, { arms, x }, area, T) {
      const marks = lab.arms.filter((arm) => arms[arm].pooled.length).map((arm) => {
        const most = last(arms[arm].pooled);
        return { arm, at: x(most), words: `${arm} worst ${ms(most)} ms` };
      });
      marks.sort((a, b) => b.at - a.at).forEach(({ arm, at, words }, i) => {
        const wide = words.length * 6.1, left = at - area.x0 > wide + 12;
        const close = i > 0 && marks[i - 1].at - at < wide + 12;
        pen.text(words, left ? at - 8 : at + 8, area.y0 + (close ? 24 : 10), lab.look(arm, T).color, left ? "right" : "left", true);
      });
    }

    function read(area, { y }) {
      if (y < area.y0 || y > area.y1) return null;
      const scale = axes(area), tail = ((area.y1 - y) / area.height) * scale.top, p = 1 - 10 ** -tail;
      const value = (sorted) => sorted[Math.min(sorted.length - 1, Math.floor(p * sorted.length))];
      const name = `p${(100 * p).toFixed(Math.max(0, Math.ceil(tail) - 1))}`;
      const marks = (pen, area, T) => {
        pen.line(area.x0, Rose.sharp(y), area.x1, Rose.sharp(y), T.line2, [2, 3]);
        for (const arm of lab.arms) if (scale.arms[arm].pooled.length) lab.ring(pen, scale.x(value(scale.arms[arm].pooled)), y, lab.look(arm, T).color, T);
      };
      return { words: `${name}: ${both(scale.arms, (all) => `${ms(value(all))} ms`)}`, marks };
    }

    function describe() {
      const arms = gaps();
      const say = (all) => [0.5, 0.95, 0.99].map((q) => `p${q * 100} ${ms(Rose.quantile(all, q))}`).join(", ") + `, worst ${ms(last(all))} ms of ${all.length} gaps`;
      return `Inter-token latency, share of gaps by length. ${both(arms, say)}.`;
    }
    return view;
  };

  /* What A and B stand for: the one value in which they differ, or the result's own words. */
  function legend(element) {
    const head = element.querySelector(".rp-rt");

    function words(arm) {
      if (!lab.document) return arm;
      const { knobs, config, differs, label } = lab.document.arms[arm];
      if (differs.length !== 1) return `${arm} ${label}`;
      const value = lab.valueText({ ...config, ...knobs }[differs[0]]);
      return `${arm} ${value === "∞" ? "unlimited" : value}`;
    }

    function show() {
      head.replaceChildren(...lab.arms.map((arm) => {
        const line = arm === "A" ? Rose.legendLine("ink", 1.75) : Rose.legendLine("rose", 1.75, "5 3");
        const entry = Rose.legend(line, Rose.element("span", "", words(arm)), arm === "B" ? "rp-hand" : "");
        if (lab.document) entry.title = `${arm}: ${lab.document.arms[arm].label}`;
        return entry;
      }));
    }
    Rose.on("lab", (what) => what === "document" && show());
    show();
  }

  function limit(pen, x, words, area, T) {
    if (x < area.x0 || x > area.x1) return;
    pen.line(Rose.sharp(x), area.y0, Rose.sharp(x), area.y1, T.ink3, [1, 2]);
    const left = x > area.x1 - 80;
    pen.text(words, left ? x - 5 : x + 5, area.y1 - 6, T.ink3, left ? "right" : "left");
  }

  // ---- time to first token ----------------------------------------------------------------------------------
  const SHARES = [["0", 0], ["p25", 0.25], ["p50", 0.5], ["p75", 0.75], ["p95", 0.95]], BINS = 30, PARTS = 5;

  lab.ttft = function (element) {
    const firsts = remembered((run) => run.requests.map((request) => request.ttft_ms));
    let histogram = false;
    const toggle = Rose.toggle("Time to first token as", ["CDF", "histogram"], (word) => {
      histogram = word === "histogram";
      view.soon();
    });
    element.querySelector(".rp-rt").replaceChildren(toggle);
    const side = (by) => (point, area) => ({ x: Math.max(area.x0, Math.min(area.x1, point ? point.x + by : (area.x0 + area.x1) / 2)), y: area.y1 });
    const view = lab.canvas(element, {
      name: "Time to first token", margin: MARGIN, draw, read, describe, keys: { ArrowLeft: side(-8), ArrowRight: side(8) },
    });
    view.subtitle = "share of requests, ms";

    function axes(area) {
      const arms = lab.document ? firsts() : null;
      const filled = arms ? lab.arms.map((arm) => arms[arm].pooled).filter((all) => all.length) : [];
      const { max, step } = Rose.axis(Math.max(1, ...filled.map(last), arms ? lab.limits.ttft_ms : 1000), PARTS);
      return { arms, max, step, x: (value) => area.x0 + (value / max) * area.width };
    }

    const bins = (sorted, max) => {
      const counts = new Array(BINS).fill(0);
      for (const value of sorted) counts[Math.min(BINS - 1, Math.floor((value / max) * BINS))]++;
      return counts.map((count) => count / sorted.length);
    };

    function draw(pen, area, T) {
      const scale = axes(area);
      const shares = histogram && scale.arms ? Object.fromEntries(lab.arms.map((arm) => [arm, bins(scale.arms[arm].pooled, scale.max)])) : null;
      const top = shares ? Math.max(0.05, ...lab.arms.flatMap((arm) => shares[arm].filter((share) => share === share))) * 1.08 : 1.02;
      const y = (share) => area.y1 - (share / top) * area.height;
      grid(pen, area, scale, y, shares ? top : 0, T);
      if (!scale.arms) return;
      limit(pen, scale.x(lab.limits.ttft_ms), `limit ${lab.limits.ttft_ms}`, area, T);
      for (const arm of lab.arms) {
        if (!scale.arms[arm].pooled.length) continue;
        if (shares) bars(pen, arm, shares[arm], scale, y, area, T);
        else curves(pen, arm, scale, y, area, T);
      }
    }

    function curves(pen, arm, { arms, x }, y, area, T) {
      const stairs = (sorted) => [...sorted].reduce((points, value, i) => {
        points.push([x(value), y(i / sorted.length)], [x(value), y((i + 1) / sorted.length)]);
        return points;
      }, [[area.x0, y(0)]]).concat([[area.x1, y(1)]]);
      const { repeats, pooled } = arms[arm], look = lab.look(arm, T), p95 = Rose.quantile(pooled, 0.95);
      if (repeats.length > 1) for (const one of repeats) if (one.length) lab.stroke(pen, stairs(one), look, false);
      lab.stroke(pen, stairs(pooled), look, true);
      lab.ring(pen, x(p95), y(0.95), look.color, T);
      const left = x(p95) > area.x1 - 48 || (arm === "A" && x(p95) > area.x0 + 48);
      pen.text(ms(p95), left ? x(p95) - 8 : x(p95) + 6, y(0.95) + (left ? 4 : 14), look.color, left ? "right" : "left", true);
    }

    function bars(pen, arm, shares, { x, max }, y, area, T) {
      const look = lab.look(arm, T), edge = (i) => x((i * max) / BINS);
      const points = shares.flatMap((share, i) => [[edge(i), y(share)], [edge(i + 1), y(share)]]);
      if (arm === "A") {
        pen.g.fillStyle = Rose.fade(T.ink, 0.14);
        shares.forEach((share, i) => pen.g.fillRect(edge(i), y(share), edge(i + 1) - edge(i), area.y1 - y(share)));
      }
      lab.stroke(pen, [[area.x0, area.y1], ...points, [area.x1, area.y1]], look, true);
    }

    function grid(pen, area, { step, x }, y, top, T) {
      const levels = top ? [0, 0.5, 1].map((part) => [`${Math.round(part * top * 100)} %`, part * top]) : SHARES;
      for (const [name, share] of levels) {
        const at = Rose.sharp(y(share));
        pen.line(area.x0, at, area.x1, at, share ? T.grid : T.line2);
        pen.text(name, area.x0 - 6, at + 3.5, T.ink3, "right");
      }
      for (let i = 0; i <= PARTS; i++) {
        const at = Rose.sharp(x(i * step));
        pen.line(at, area.y0, at, area.y1, T.grid);
        pen.text(`${lab.plain(i * step)}${i === PARTS ? " ms" : ""}`, i === PARTS ? area.x1 + 10 : at, area.y1 + 13, T.ink3, i === PARTS ? "right" : "center");
      }
    }

    function read(area, { x: px }) {
      if (px < area.x0 || px > area.x1) return null;
      const scale = axes(area), value = ((px - area.x0) / area.width) * scale.max;
      const marks = (pen, area, T) => pen.line(Rose.sharp(px), area.y0, Rose.sharp(px), area.y1, T.line2, [2, 3]);
      if (histogram) {
        const bin = Math.min(BINS - 1, Math.floor((value / scale.max) * BINS)), edge = (i) => ms((i * scale.max) / BINS);
        return { words: `${edge(bin)} to ${edge(bin + 1)} ms: ${both(scale.arms, (all) => `${Math.round(100 * bins(all, scale.max)[bin])} %`)}`, marks };
      }
      const within = (all) => `${Math.round((100 * all.filter((one) => one <= value).length) / all.length)} %`;
      return { words: `within ${ms(value)} ms: ${both(scale.arms, within)}`, marks };
    }

    function describe() {
      const say = (all) => `p50 ${ms(Rose.quantile(all, 0.5))}, p95 ${ms(Rose.quantile(all, 0.95))} ms of ${all.length} requests`;
      return `Time to first token, share of requests by time. ${both(firsts(), say)}.`;
    }
    return view;
  };
})(window.Rose);
