/* Under the block map, and beside a block of it.
 *
 *   Rose.blockLegend(plot)   a line of marks and counts under a plot; answers with a function that writes the counts
 *   Rose.blockInfo(block, x, y, closed)   asks GET /ui/block/{n} what is in a block and says it in a popover, again when it has changed */
"use strict";
(function (Rose) {
  const AGAIN_MS = 700, BUSY_MS = 2000, TIMEOUT_MS = 6000, MOST_HOLDERS = 12;

  // ---- legend -----------------------------------------------------------------------------------------------
  const rect = (x, width, color, y = 0, height = 13) => ["rect", { x, y, width, height, fill: `var(--rp-${color})` }];
  const three = ["path", { d: "M3 3h3v5h-3v-1h2v-1h-2v-1h2v-1h-2z", fill: "var(--rp-surface)" }];
  const hollow = ["rect", { x: 1.5, y: 0.5, width: 7, height: 12, fill: "none", stroke: "var(--rp-cachedline)" }];
  const MARKS = [
    ["active", [rect(0, 4, "c0"), rect(5, 4, "c1"), rect(10, 3, "c4")], "one owner"],
    ["shared", [rect(1, 7, "shared"), three, rect(1, 7, "c0", 11, 2)], "shared"],
    ["cached", [hollow], "cached"],
    ["free", [rect(1, 8, "free")], "free"],
  ];

  Rose.blockLegend = function (plot) {
    const make = Rose.element, count = () => make("b", "", "–");
    const entries = MARKS.map(([name, shapes, words]) => [name, make("span", "rp-lg", Rose.svg(13, 13, ...shapes), `${words} `, count())]);
    entries.push(["saved", make("span", "rp-lg rp-saves", "saves ", count(), " blocks")]);
    for (const [name, entry] of entries) entry.dataset.of = name;
    plot.after(make("div", "rp-under", ...entries.map(([, entry]) => entry)));
    const places = entries.map(([name, entry]) => [name, entry.querySelector("b")]);
    return (counts) => places.forEach(([name, place]) => Rose.write(place, Rose.format.count(counts[name])));
  };

  // ---- what is in a block -----------------------------------------------------------------------------------
  let open = null; // {block, seen, asked, timer}

  Rose.blockInfo = function (block, x, y, closed) {
    const mine = (open = { block, seen: "", timer: 0, body: null });
    Rose.popover.open({
      name: "block", title: `Block ${block}`, x, y,
      fill(body) {
        mine.body = body;
        body.append(Rose.popover.element("p", "", "Asking the engine …"));
      },
      closed() {
        clearTimeout(mine.timer);
        if (open === mine) open = null;
        closed();
      },
    });
    ask(mine);
  };

  const look = (block) => `${Rose.blocks.references[block]} ${Rose.blocks.owner[block]} ${Rose.blocks.findable[block]}`;

  /* What a block says of itself in a recording: frames tell who holds it, nothing tells what is in it. */
  function recorded(mine) {
    const { element, facts, row } = Rose.popover, { references, owner, findable } = Rose.blocks, n = mine.block;
    mine.seen = look(n);
    const state = ["free", "cached", "active", "shared"][Rose.blocks.kind(n)];
    mine.body.replaceChildren(
      element("p", "", "A recording has no contents of blocks, only who held them."),
      facts(row("state", state), row("holders", String(references[n])), row("longest held by", ...holders(owner[n] >= 0 ? [owner[n]] : [])), row("findable", findable[n] ? "yes" : "no")),
    );
  }

  async function ask(mine) {
    if (Rose.replay?.on) return recorded(mine);
    let busy = false;
    mine.seen = look(mine.block);
    let answer, problem = "";
    try {
      const reply = await fetch(`/ui/block/${mine.block}?tab=${encodeURIComponent(Rose.tab || "")}`, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
      answer = await reply.json();
      busy = reply.status === 503;
      if (!reply.ok) problem = String(answer.detail || `the server answered ${reply.status}`);
    } catch {
      problem = "the server did not answer";
    }
    if (open !== mine) return;
    if (problem) mine.body.replaceChildren(Rose.popover.element("p", "", `It cannot be told now: ${problem}.`));
    else fill(mine.body, answer);
    Rose.popover.fits();
    if (busy) askAgain(mine, BUSY_MS); // in a long step, say
  }

  function askAgain(mine, wait) {
    clearTimeout(mine.timer);
    mine.timer = setTimeout(() => {
      mine.timer = 0;
      if (open === mine) ask(mine);
    }, wait);
  }

  Rose.on("frame", () => {
    if (open && !open.timer && look(open.block) !== open.seen) askAgain(open, AGAIN_MS);
  });

  function fill(body, info) {
    const { element, facts, row } = Rose.popover;
    const text = info.text === null ? null : element("blockquote", "", info.text);
    if (text) text.setAttribute("aria-label", "Its text");
    body.replaceChildren(
      sentence(info),
      ...[text].filter(Boolean),
      facts(
        row("held by", ...holders(info.holders)),
        row("place in its text", place(info)),
        row("tokens", info.tokens && !text ? `${info.tokens}, text not this tab's` : String(info.tokens)),
        row("last use", lastUse(info)),
      ),
    );
  }

  function sentence({ state, holders, findable }) {
    const { element } = Rose.popover, bold = (words) => element("b", "", words);
    const words = {
      shared: () => [bold(`${holders.length} requests`), " read it; it was computed once."],
      active: () => ["One request holds it", findable ? "; a new prompt that begins the same would share it." : "."],
      cached: () => ["Nobody holds it. It is ", bold("kept"), " for a prompt that begins the same."],
      free: () => ["Nothing is in it."],
    };
    return element("p", "", ...words[state]());
  }

  function holders(rids) {
    const named = rids.slice(0, MOST_HOLDERS).map(Rose.popover.request);
    return rids.length > MOST_HOLDERS ? [...named, ` and ${rids.length - MOST_HOLDERS} more`] : named.length ? named : ["nobody"];
  }

  function place({ depth, tokens }) {
    const { info } = Rose.store, { count } = Rose.format;
    if (depth === null) return "–";
    const first = depth * (info ? info.block_size : 0);
    return info && tokens ? `block ${count(depth + 1)}, tokens ${count(first)}–${count(first + tokens - 1)}` : `block ${count(depth + 1)}`;
  }

  function lastUse({ last_use: step }) {
    if (step < 0) return "never";
    const row = Rose.store.stepRow(step), { steps } = Rose.store;
    const ago = row < 0 ? "" : `, ${Rose.format.seconds(Math.max(0, Rose.clock() - steps.t1[row & steps.mask]))} ago`;
    return `step ${Rose.format.count(step)}${ago}`;
  }
})(window.Rose);
