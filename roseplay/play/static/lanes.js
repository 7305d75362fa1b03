/* Rose.lanes: the chats. Their turns are Rose.Turn; this file keeps them in order and says how the newest one is doing.
 *
 * The server keeps a tab's lanes; this file keeps, for each, the stamp of what it has (`have`), which every poll sends back so
 * that a lost answer or a reload costs nothing. */
"use strict";
(function (Rose) {
  const KEY = "roseplay-lanes", DEFAULT = 4, HUES = 8, FIGURES_MS = 250, BOTTOM_PX = 24;
  const HEIGHTS = [0, 337, 337, 337, 337, 420, 420, 500, 500];
  const NAMES = ["", "the lane", "both lanes", "all three lanes", "all four lanes", "all five lanes", "all six lanes", "all seven lanes", "all eight lanes"];
  const QUESTIONS = ["What is a KV block?", "Why did ITL spike?", "Tell me a story about a fox.", "What does the prefix cache do?"];
  const OVER = new Set(["done", "stopped", "error"]);
  const ALL = "all lanes"; // as the list of lanes to send to has it
  const lanes = [];
  let box = null, dots = null, said = null, count = stored(), to = ALL;

  function stored() {
    try {
      const n = Number(sessionStorage.getItem(KEY));
      return n >= 1 && n <= 8 ? n : DEFAULT;
    } catch {
      return DEFAULT;
    }
  }

  // ---- building ---------------------------------------------------------------------------------------------
  const make = (tag, className, parent) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (parent) parent.append(element);
    return element;
  };

  function build(index, acts) {
    const root = make("section", "rp-lane", box);
    root.id = `rp-lane-${index + 1}`;
    root.tabIndex = -1;
    root.setAttribute("aria-label", `Lane ${index + 1}`);
    root.style.setProperty("--hue", `var(--rp-c${index % HUES})`);
    const head = make("header", "", root);
    make("b", "", head).textContent = index + 1;
    const title = make("h4", "", head), stop = make("button", "rp-halt", head);
    stop.type = "button";
    stop.hidden = true;
    stop.setAttribute("aria-label", `Stop lane ${index + 1}`);
    stop.title = "Stop this lane";
    stop.append(Rose.cross());
    stop.onclick = () => acts.halt(index + 1);
    const meta = make("div", "rp-meta", root), state = make("span", "rp-state", meta), rate = make("span", "rp-rate", meta);
    const ttft = make("span", "rp-ttft", meta), itl = make("span", "rp-itl", meta);
    ttft.title = "Time to first token";
    itl.title = "Inter-token latency: median of this answer";
    const stall = make("p", "rp-stall", root), text = make("div", "rp-text", root);
    stall.hidden = true;
    text.setAttribute("role", "log");
    text.setAttribute("aria-live", "off");
    const prefill = make("div", "rp-prefill", root), track = make("div", "", prefill);
    const bars = [make("i", "", track), make("i", "", track)], words = make("span", "", prefill);
    const lane = {
      index, root, title, stop, state, rate, ttft, itl, stall, text, bars, words, dot: make("i", "", dots),
      turns: [], news: null, have: "", shown: 0, at: 0, due: false, sticks: true, bottom: -1, say: (what) => Rose.write(said, what),
    };
    lane.dot.style.setProperty("--hue", `var(--rp-c${index % HUES})`);
    lane.tools = Rose.laneTools(lane, acts);
    root.onmouseenter = () => lane.news && Rose.emit("hover", lane.news.rid);
    root.onmouseleave = () => Rose.emit("hover", null);
    text.addEventListener("scroll", () => scrolled(lane), { passive: true });
    Rose.picking.watch(lane);
    lane.tools.show();
    lane.hint = hint(lane, acts.ask);
    return lane;
  }

  function hint(lane, ask) {
    const words = make("span", "rp-hint"), question = QUESTIONS[lane.index % QUESTIONS.length];
    if (lane.index === 0) words.append("Write a prompt below, press Burst, or try ");
    const button = make("button", "", words);
    button.type = "button";
    button.textContent = question;
    button.title = "Ask this in this lane";
    button.onclick = () => ask(lane.index + 1, question);
    lane.text.replaceChildren(words);
    return words;
  }

  // ---- filling ----------------------------------------------------------------------------------------------
  function take(news) {
    const lane = lanes[news.lane - 1];
    if (!lane) return;
    const before = lane.news, other = !before || before.rid !== news.rid;
    lane.news = news;
    lane.have = news.have;
    lane.at = performance.now();
    const changed = other || before.state !== news.state;
    if (changed) {
      lane.root.dataset.state = news.state || "";
      lane.stop.hidden = !news.state || OVER.has(news.state) || news.state === "stopping";
      Rose.write(lane.title, news.title);
      lane.title.title = news.title;
    }
    fill(lane, news, other);
    if (changed && !other && OVER.has(news.state)) lane.say(`Lane ${lane.index + 1}: ${stateText(news)}`);
    lane.due = true;
    if (changed) lane.shown = 0; // a new state is told at once, figures four times a second
  }

  function fill(lane, news, other) {
    for (const one of news.turns) {
      let turn = lane.turns.find((known) => known.rid === one.rid);
      if (!turn) lane.turns.push((turn = new Rose.Turn(one.rid)));
      turn.take(one);
    }
    if (news.order) arrange(lane, news.order);
    lane.sticks = lane.sticks || other;
    if (lane.sticks) toBottom(lane);
  }

  /* Where a text ends is known once it is laid out: all lanes ask for it together, when that is due anyway. */
  const sinking = new Set();

  function toBottom(lane) {
    if (!sinking.size) requestAnimationFrame(sink);
    sinking.add(lane);
  }

  function sink() {
    for (const lane of sinking) {
      if (!lane.sticks) continue; // its reader has scrolled up meanwhile
      lane.text.scrollTop = lane.text.scrollHeight;
      lane.bottom = lane.text.scrollTop;
    }
    sinking.clear();
  }

  /* A reader who scrolls up stays there; at the bottom the text sticks again. */
  function scrolled(lane) {
    const { scrollTop, scrollHeight, clientHeight } = lane.text;
    if (scrollTop !== lane.bottom) lane.sticks = scrollHeight - scrollTop - clientHeight < BOTTOM_PX; // else it was us
  }

  function arrange(lane, order) {
    const byRid = new Map(lane.turns.map((turn) => [turn.rid, turn]));
    lane.turns = order.map((rid) => byRid.get(rid)).filter(Boolean);
    for (const turn of byRid.values()) if (!lane.turns.includes(turn)) turn.root.remove();
    if (!lane.turns.length) lane.text.replaceChildren(lane.hint);
    else lane.hint.remove();
    for (const turn of lane.turns) {
      if (turn.root.parentNode === lane.text) continue;
      lane.text.append(turn.root); // turns come in their order
      Rose.picking.born(turn);
    }
    lane.tools.show();
  }

  const tokens = (news) => `${Rose.format.count(news.prompt)}+${Rose.format.count(news.tokens)} tok`; // prompt and answer

  function stateText(news) {
    switch (news.state) {
      case undefined: return "";
      case "queued": return "queued";
      case "prefill": return `prefill ${news.computed}/${news.target}${news.cached ? ` · ${news.cached} cached` : ""}`;
      case "error": return "error";
      case "done": return `${news.reason === "length" ? "length" : "done"} · ${tokens(news)}`;
      default: return `${news.state} · ${tokens(news)}`;
    }
  }

  function figures(lane, now) {
    const news = lane.news;
    if (!lane.due || now - lane.shown < FIGURES_MS) return;
    lane.due = news.ttft_ms == null && news.waiting_ms != null; // its clock runs on between polls that bring nothing
    lane.shown = now;
    lane.tools.show();
    stalled(lane);
    if (lane.root.dataset.stalled === "stopped") return;
    Rose.write(lane.state, stateText(news));
    lane.state.title = news.state ? `${news.prompt} prompt tokens (${news.cached} of them cached or shared), ${news.tokens} generated${news.reason ? `, ended by ${news.reason}` : ""}` : "";
    const waited = news.waiting_ms == null ? null : news.waiting_ms + now - lane.at;
    Rose.write(lane.rate, news.state === "decode" && news.tok_s != null ? `${news.tok_s < 9.5 ? news.tok_s.toFixed(1) : Math.round(news.tok_s)} tok/s` : "");
    Rose.write(lane.ttft, news.ttft_ms != null ? `TTFT ${Rose.format.seconds(news.ttft_ms)}` : waited == null ? "" : `waiting ${Rose.format.seconds(waited)}`);
    Rose.write(lane.itl, news.itl_p50 == null ? "" : `ITL ${news.itl_p50 < 9.95 ? news.itl_p50.toFixed(1) : Math.round(news.itl_p50)} ms`);
    if (news.state !== "prefill" || !news.target) return;
    const computed = Math.max(0, news.computed - news.cached);
    lane.bars[0].style.width = `${(100 * news.cached) / news.target}%`;
    lane.bars[1].style.width = `${(100 * computed) / news.target}%`;
    Rose.write(lane.words, `${news.cached} cached + ${computed} computed, ${news.target - news.computed} to go`);
  }

  Rose.on("own", (own) => {
    if (!box) return;
    for (const news of own.lanes || []) take(news);
    const now = performance.now();
    for (const lane of lanes) if (lane.news) figures(lane, now);
  });

  /* What keeps an answer that is under way from going on, where that is known. */
  function stalled(lane) {
    const { trouble } = Rose.connection, under = lane.news && lane.news.state && !OVER.has(lane.news.state), what = under ? trouble : null;
    lane.stall.hidden = !what;
    Rose.write(lane.stall, what ? what.words : "");
    lane.root.dataset.stalled = what ? (what.stopped ? "stopped" : "slow") : "";
    if (!what || !what.stopped) return;
    Rose.write(lane.state, "no news");
    Rose.write(lane.rate, "");
  }

  Rose.on("connection", () => {
    for (const lane of lanes) {
      if (!lane.news) continue;
      Object.assign(lane, { due: true, shown: 0 });
      figures(lane, performance.now());
    }
  });

  // A server that started anew knows nothing of the answers that were under way.
  let boot = null;
  Rose.on("reset", (delta) => {
    const anew = boot !== null && boot !== delta.boot_id;
    boot = delta.boot_id;
    if (!anew) return;
    for (const lane of lanes) {
      lane.have = "";
      const last = lane.turns[lane.turns.length - 1];
      if (!last || !lane.news.state || OVER.has(lane.news.state)) continue;
      const error = "The server was restarted while this answer was under way.";
      last.take({ text: "", text_from: 1, tokens_from: 1, widths: [], times: [], question: last.asked.data, state: "error", error });
      take({ ...lane.news, turns: [], order: null, state: "error", have: "", waiting_ms: null, error });
    }
  });

  Rose.on("hover", (rid) => {
    if (!box) return;
    box.classList.toggle("rp-pointed", rid !== null && lanes.some((lane) => lane.news && lane.news.rid === rid));
    for (const lane of lanes) lane.root.classList.toggle("rp-on", Boolean(lane.news && lane.news.rid === rid));
  });

  // ---- how many ---------------------------------------------------------------------------------------------
  function show() {
    box.dataset.count = count;
    document.body.style.setProperty("--rp-lanes-height", `${HEIGHTS[count]}px`);
    for (const lane of lanes) lane.root.hidden = lane.dot.hidden = lane.index >= count;
    const prompt = document.querySelector("#prompt input");
    if (prompt) prompt.placeholder = `Ask ${to === ALL ? NAMES[count] : to}…`;
  }

  /** For the drop-down list of lane counts; answers what "send to" should be then. */
  Rose.showLanes = function (chosen, sendTo) {
    count = Number(chosen);
    to = Number(String(sendTo).replace("lane ", "")) > count ? ALL : sendTo;
    try {
      sessionStorage.setItem(KEY, String(count));
    } catch {
      // then only until the next reload
    }
    show();
    return to;
  };

  /** Which lanes a prompt goes to: "all lanes" or one of them. */
  Rose.sendTo = function (chosen) {
    to = chosen;
    show();
  };

  Rose.lanesShown = () => String(count);

  function swiped() {
    const at = Math.round(box.scrollLeft / Math.max(1, box.clientWidth));
    for (const lane of lanes) lane.dot.classList.toggle("rp-on", lane.index === at);
  }

  /** Build the lanes in `element`; `acts` is what their buttons do: ask(lane, prompt), edit(lane, prompt), again(lane),
   *  anew(lane), halt(lane), with lanes counted from 1. */
  Rose.lanes = function (element, most, acts) {
    box = element.querySelector(".rp-lanes");
    dots = element.querySelector(".rp-dots");
    said = element.querySelector(".rp-said");
    for (let i = 0; i < most; i++) lanes.push(build(i, acts));
    Rose.picking.begin((rid) => lanes.flatMap((lane) => lane.turns).find((turn) => turn.rid === rid));
    box.addEventListener("scroll", swiped, { passive: true });
    swiped();
    show();
  };

  /** Whether a request was sent from this tab's lanes. */
  Rose.lanes.own = (rid) => lanes.some((lane) => lane.turns.some((turn) => turn.rid === rid));

  /** What this page has of its lanes, for the next poll. */
  Rose.lanes.have = () => lanes.map((lane) => lane.have).filter(Boolean).join(",");

  /** Put the keyboard's focus on a lane, from 1. */
  Rose.lanes.focus = function (number) {
    const lane = lanes[number - 1];
    if (!lane || number > count) return;
    lane.root.scrollIntoView({ block: "nearest", inline: "start" });
    lane.root.focus({ preventScroll: true });
  };
})(window.Rose);
