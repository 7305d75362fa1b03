/* Rose.lab.result and Rose.lab.sentences: the table of medians with B over A, and what to look for. */
"use strict";
(function (Rose) {
  const { lab } = Rose, make = Rose.popover.element;
  const CLIP = 3, HALF_PX = 34; // ratio bars end at 8x
  const SAME = Math.log2(1.15); // closer than this is no difference
  const METRICS = [ // what stands there before there is a result
    ["output_tokens_per_s", "Throughput", "tok/s"], ["goodput_req_s", "Goodput", "req/s in SLO"], ["ttft_p50_ms", "TTFT p50", "ms"],
    ["ttft_p95_ms", "TTFT p95", "ms"], ["tpot_p50_ms", "TPOT p50", "ms"], ["itl_p50_ms", "ITL p50", "ms"], ["itl_p95_ms", "ITL p95", "ms"],
    ["itl_p99_ms", "ITL p99", "ms"], ["itl_max_ms", "ITL worst", "ms"],
  ].map(([name, title, unit]) => ({ name, title, unit, better: "lower", a: null, b: null, a_range: null, b_range: null, ratio: null }));

  /** The head of a table with a column for A and one for B behind the first. */
  lab.tableHead = function (first, ...more) {
    const cells = [first, make("i", "rp-ab", "A"), make("i", "rp-ab b", "B"), ...more].map((inside) => make("th", "", inside));
    for (const cell of cells) cell.scope = "col";
    return make("thead", "", make("tr", "", ...cells));
  };

  /** A figure with its three leading digits, or so. */
  lab.figure = function (value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 100 || Number.isInteger(value)) return Rose.format.count(value);
    return value.toFixed(size >= 10 ? 1 : 2);
  };

  /* A ratio's logarithm, from -3 to 3; 0 of none. */
  const clipped = (ratio) => (ratio === null ? 0 : ratio <= 0 ? -CLIP : Math.max(-CLIP, Math.min(CLIP, Math.log2(ratio))));

  const ratioText = (ratio) => (ratio === null ? "–" : `${ratio === 0 ? "0" : ratio < 0.1 ? ratio.toFixed(3) : ratio < 10 ? ratio.toFixed(2) : ratio.toFixed(1)}×`);

  /* A bar from the middle, as long as the ratio's logarithm; filled where B is better, hollow where it is worse. */
  function bar(ratio, better) {
    const log = clipped(ratio), wide = (Math.abs(log) / CLIP) * HALF_PX;
    const good = log > 0 === (better === "higher"), grey = Math.abs(log) < SAME, x = log > 0 ? 36.5 : 36.5 - wide;
    const color = grey ? "line2" : good ? "ink" : "ink3";
    const solid = { x: x.toFixed(1), y: 3, width: wide.toFixed(1), height: 6, fill: `var(--rp-${color})` };
    const hollow = { ...solid, y: 3.5, width: Math.max(1.5, wide).toFixed(1), height: 5, fill: "none", stroke: `var(--rp-${color})` };
    const marks = wide < 0.8 ? [] : [["rect", good || grey ? solid : hollow]];
    return Rose.svg(72, 12, ["path", { d: "M36.5 0v12", stroke: "var(--rp-line2)" }], ...marks);
  }

  lab.result = function (element) {
    const plot = element.querySelector(".rp-plot"), subtitle = element.querySelector(".rp-sub");
    plot.classList.add("rp-lab-scroll");
    const body = make("tbody"), table = make("table", "rp-lab-table rp-lab-res");
    table.append(lab.tableHead("metric", "B / A", "solid = better"), body);
    plot.append(table);

    function row(metric) {
      const { name, title, unit, better, a, b, ratio } = metric;
      const log = clipped(ratio), same = Math.abs(log) < SAME, good = log > 0 === (better === "higher");
      const th = make("th", "", title, " ", make("small", "", unit)), tr = make("tr", same ? "rp-same" : good ? "rp-good" : "rp-worse");
      th.scope = "row";
      th.title = lab.meaning(name);
      tr.dataset.metric = name;
      if (lab.scenario && lab.scenario.watch === name) tr.classList.add("rp-watched");
      const hear = make("span", "rp-lab-hear", ratio === null ? "" : same ? "no clear difference" : good ? "B is better" : "B is worse");
      const drawing = make("td", "", bar(ratio, better), hear);
      tr.append(th, figure("A", a, metric.a_range, unit), figure("B", b, metric.b_range, unit), make("td", "", ratioText(ratio)), drawing);
      return tr;
    }

    function figure(arm, value, range, unit) {
      const td = make("td", arm.toLowerCase(), lab.figure(value));
      if (range) td.title = `${arm}: ${lab.figure(range[0])} to ${lab.figure(range[1])} ${unit} over the repeats`;
      return td;
    }

    function same(yes) {
      const tr = make("tr", "rp-same"), th = make("th", "", "Same tokens"), td = make("td", "", yes ? "yes" : "no");
      th.scope = "row";
      th.title = lab.meaning("same_tokens");
      td.colSpan = 4;
      tr.dataset.metric = "same_tokens";
      tr.append(th, td);
      return tr;
    }

    function show() {
      const summary = lab.document && lab.document.summary, repeats = lab.document && lab.document.repeats;
      Rose.write(subtitle, !summary ? "" : repeats > 1 ? `medians of ${repeats} repeats` : "one repeat");
      const about = summary ? { model: lab.document.model, dtype: lab.document.dtype, ...lab.document.environment } : {};
      subtitle.title = Object.entries(about).filter(([, value]) => value !== null).map(([name, value]) => `${name}: ${value}`).join("\n");
      body.replaceChildren(...(summary ? [same(summary.same_tokens)] : []), ...(summary ? summary.metrics : METRICS).map(row));
    }

    Rose.on("lab", (what) => (what === "document" || what === "summary") && show());
    show();
  };

  /** Before a run where to look, after it what it showed. */
  lab.sentences = function (element) {
    const plot = element.querySelector(".rp-plot"), subtitle = element.querySelector(".rp-sub"), list = make("ol", "rp-lab-look");
    plot.classList.add("rp-lab-scroll");
    plot.append(list);

    function show() {
      const before = (lab.scenario && lab.scenario.look) || [];
      Rose.write(subtitle, lab.document ? "what this run showed" : "");
      list.replaceChildren(...(lab.document ? lab.document.summary.sentences : before).map((sentence) => {
        const [, head, rest] = /^([^.:]{3,32}[:.])\s+(.+)$/s.exec(sentence) || [null, "", sentence];
        return make("li", "", ...(head ? [make("b", "", head), " "] : []), rest);
      }));
    }

    Rose.on("lab", (what) => ["document", "summary", "plan"].includes(what) && show());
    show();
  };
})(window.Rose);
