/* Rose.lab.settings: what A and B run with, a row a setting, each cell editable. Rows that differ stand first. */
"use strict";
(function (Rose) {
  const { lab } = Rose, make = Rose.popover.element;

  // name: [title, what it acts on, how it is edited]; `limit`: a number, or unlimited.
  const ROWS = {
    knobs: {
      prefill_max_tokens: ["Prefill budget", "smoothness", "limit"], max_batch_size: ["Max batch", "throughput", "whole"],
      prefill_max_batch_size: ["Prefill requests", "fairness", "limit"], step_max_tokens: ["Step tokens", "smoothness", "limit"],
      chunked_prefill: ["Chunked prefill", "pacing", "switch"], prefix_cache: ["Prefix cache", "reuse", "switch"],
      same_step_sharing: ["Same-step sharing", "dedup", "switch"], batched_append: ["Batched append", "bandwidth", "switch"],
      admission: ["Admission", "submit", ["queued", "blocking"]], cuda_graphs: ["CUDA graphs", "launches", "switch"],
      overlap: ["Overlap", "launches", "switch"],
    },
    config: {
      num_blocks: ["KV blocks", "engine: memory", "whole"], block_size: ["Block size", "engine: tokens a block", "whole"],
      max_model_len: ["Longest request", "engine: tokens", "whole"], max_waiting: ["Queue length", "engine: requests", "whole"],
      threads: ["Threads", "engine: cores", "whole"], pack_weights: ["Packed weights", "engine: bandwidth", "switch"],
      fuse_ops: ["Fused operations", "engine: few tokens", "switch"], replay_steps: ["Replayed steps", "engine: few tokens", "switch"],
      attention: ["Attention", "engine: KV reads", ["auto", "cpu", "gather", "reference"]], dtype: ["Number format", "engine: bandwidth", ["float32", "bfloat16", "float16"]],
    },
  };
  const GPU = new Set(["cuda_graphs", "overlap"]);
  const UNLIMITED = /^(∞|unlimited|inf|infinity|none|null|)$/i;

  /** A setting's value in words. */
  lab.valueText = (value) => (value === null || value === undefined ? "∞" : value === true ? "on" : value === false ? "off" : String(value));

  lab.settings = function (element) {
    const plot = element.querySelector(".rp-plot"), head = element.querySelector(".rp-rt"), subtitle = element.querySelector(".rp-sub");
    let only = false;
    const toggle = Rose.toggle("Settings shown", ["all", "differences"], (word) => {
      only = word === "differences";
      show();
    });
    const swap = Rose.button("swap A ⇄ B", "rp-lab-swap");
    swap.onclick = () => lab.plan && lab.swap();
    head.replaceChildren(toggle, swap);
    plot.classList.add("rp-lab-scroll");
    const body = make("tbody"), table = make("table", "rp-lab-table rp-lab-set");
    table.append(lab.tableHead("setting", "acts on"), body);
    plot.append(table);

    /* Every setting there is, those that differ first: [{group, name, title, acts, kind, differs}]. */
    function rows() {
      const found = [];
      for (const group of ["knobs", "config"]) {
        for (const name of Object.keys(lab.plan.A[group])) {
          const known = ROWS[group][name], value = lab.plan.A[group][name], other = lab.plan.B[group][name];
          if (name === "slow_motion" || (group === "config" && !known)) continue;
          const [title, acts, kind] = known || [name.replace(/_/g, " "), "", typeof value === "boolean" ? "switch" : "limit"];
          found.push({ group, name, title, acts, kind, differs: value !== other, order: Object.keys(ROWS[group]).indexOf(name) });
        }
      }
      const rank = (row) => (row.differs ? 0 : row.group === "knobs" ? 1 : 2);
      return found.sort((a, b) => rank(a) - rank(b) || a.order - b.order);
    }

    function show() {
      if (!lab.plan) return;
      const all = rows(), differing = all.filter((row) => row.differs).length, focused = document.activeElement;
      const key = focused && body.contains(focused) ? focused.dataset.key : null;
      Rose.write(subtitle, differing === 1 ? "1 differs" : differing ? `${differing} differ` : "no difference");
      body.replaceChildren(...all.filter((row) => row.differs || !only).map(line));
      if (!only) body.append(slow());
      const again = key && body.querySelector(`[data-key="${CSS.escape(key)}"]`);
      if (again) again.focus();
    }

    function line(row) {
      const tr = make("tr", row.differs ? "rp-differs" : ""), th = make("th", "", row.title);
      th.scope = "row";
      th.title = lab.meaning(row.name);
      tr.append(th, ...lab.arms.map((arm) => make("td", arm.toLowerCase(), cell(row, arm))), make("td", "", acts(row)));
      return tr;
    }

    const device = () => (lab.catalogue && lab.catalogue.engine.device) || "cpu";
    const unavailable = (row) => GPU.has(row.name) && !device().startsWith("cuda");
    const acts = (row) => (unavailable(row) ? "needs a GPU" : row.acts);

    function slow() {
      const tr = make("tr", "rp-off"), th = make("th", "", "Slow motion");
      th.scope = "row";
      th.title = lab.meaning("slow_motion");
      tr.append(th, make("td", "", "off"), make("td", "", "off"), make("td", "", "refused here"));
      return tr;
    }

    function cell(row, arm) {
      const value = lab.plan[arm][row.group][row.name];
      if (unavailable(row)) return make("span", "rp-off", "off");
      const input = Array.isArray(row.kind) ? choice(row, arm, value) : row.kind === "switch" ? onOff(row, arm, value) : typed(row, arm, value);
      input.dataset.key = `${arm} ${row.name}`;
      input.setAttribute("aria-label", `${row.title}, ${arm}`);
      return input;
    }

    const set = (row, arm, value) => lab.set(arm, row.group, row.name, value);

    function onOff(row, arm, value) {
      const button = make("button", "", lab.valueText(value));
      button.type = "button";
      button.setAttribute("role", "switch");
      button.setAttribute("aria-checked", Boolean(value));
      button.onclick = () => set(row, arm, !value);
      return button;
    }

    function choice(row, arm, value) {
      const select = make("select");
      for (const option of new Set([value, ...row.kind])) select.append(new Option(option, option, false, option === value));
      select.onchange = () => set(row, arm, select.value);
      return select;
    }

    function typed(row, arm, value) {
      const input = make("input");
      const shown = value === null && row.kind === "whole" ? "auto" : lab.valueText(value);
      Object.assign(input, { type: "text", inputMode: "numeric", value: shown, autocomplete: "off", spellcheck: false });
      input.onfocus = () => input.select();
      input.onkeydown = (event) => {
        if (event.key === "Enter") input.blur();
        if (event.key === "Escape") input.value = shown;
      };
      input.onchange = () => {
        const text = input.value.replace(/[\s\u202f]/g, ""), number = Number(text);
        if (text === shown) return accept(value);
        if (row.kind === "limit" && UNLIMITED.test(text)) return accept(null);
        if (text && Number.isInteger(number) && number >= 1) return accept(number);
        input.value = shown;
        lab.say(`${row.title} of ${arm} takes a whole number of at least 1${row.kind === "limit" ? ", or unlimited" : ""}.`);
      };
      const accept = (next) => {
        lab.say("");
        set(row, arm, next);
      };
      return input;
    }

    Rose.on("lab", (what) => what === "plan" && show());
    show();
  };
})(window.Rose);
