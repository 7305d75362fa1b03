/* Rose.poll: the page's one connection. Asks GET /ui/delta for what is new, every 80 ms while the page is seen and
 * once a second while it is hidden, never twice at a time, and hands it to Rose.store. The times are fixed: when an answer or
 * a drawing takes long, only the wait for the next poll gets shorter.
 *
 * While a replay is shown (`hold`) it asks only to keep this tab's lease, and drops what it hears; where there is no engine it
 * does not ask at all.
 *
 *   .asked    when it asked what has not been answered yet (performance.now()), null where all has been
 *   .heard    when the last answer came; .alive, .health what it said of the engine
 * Emits "heard" at each answer, before the store takes it.
 *
 * Rose.tab is this tab's id: it outlives a reload, and says which lanes and bursts on the server are this tab's. */
"use strict";
(function (Rose) {
  const VISIBLE_MS = 80, HIDDEN_MS = 1000, HELD_MS = 30000, TIMEOUT_MS = 10000, LEAST_MS = 10, RETRY_MS = [300, 500, 1000, 2000];

  Rose.tab = (function () {
    const KEY = "roseplay-tab";
    const fresh = Array.from(crypto.getRandomValues(new Uint8Array(12)), (b) => b.toString(16).padStart(2, "0")).join("");
    try {
      const known = sessionStorage.getItem(KEY) || fresh;
      sessionStorage.setItem(KEY, known);
      return known;
    } catch {
      return fresh;
    }
  })();

  const poll = (Rose.poll = { count: 0, failures: 0, held: false, asked: null, heard: 0, alive: true, health: null, tell: say });
  let light = null, timer = 0, underWay = false, due = 0;

  function say(state, words) {
    if (!light || light.dataset.state === state) return;
    light.dataset.state = state;
    light.lastElementChild.textContent = words;
  }

  function address() {
    const query = new URLSearchParams({ since: Rose.store.cursor || 0, boot: Rose.store.bootId || "", tab: Rose.tab });
    const have = Rose.lanes ? Rose.lanes.have() : "";
    if (have) query.set("have", have);
    return `/ui/delta?${query}`;
  }

  async function ask() {
    if (underWay) return;
    underWay = true;
    clearTimeout(timer);
    let wait;
    if (poll.asked === null) poll.asked = performance.now();
    try {
      const answer = await fetch(address(), { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const delta = await answer.json();
      poll.failures = 0;
      poll.count++;
      Object.assign(poll, { asked: null, heard: performance.now(), alive: delta.alive !== false, health: delta.health || null });
      Rose.emit("heard");
      if (!poll.held) {
        Rose.store.apply(delta);
        Rose.emit("own", delta.own, delta);
        if (delta.alive === false) say("lost", "engine stopped");
        else say("live", "live");
      }
      const every = poll.held ? HELD_MS : document.hidden ? HIDDEN_MS : VISIBLE_MS, now = performance.now();
      due = Math.abs(due + every - now) > every ? now + every : due + every; // what is far behind is not caught up with
      wait = due - now;
    } catch {
      wait = RETRY_MS[Math.min(poll.failures++, RETRY_MS.length - 1)];
      if (poll.failures > 1 && !poll.held) say("lost", "reconnecting");
    }
    underWay = false;
    timer = setTimeout(ask, Math.max(LEAST_MS, wait));
  }

  /** Begin; `element` holds the light that says whether the server answers. */
  poll.start = function (element) {
    light = element.querySelector(".rp-live");
    if (window.RoseRecording) return Rose.replay.served();
    document.addEventListener("visibilitychange", () => document.hidden || ask());
    ask();
  };

  /** Whether something else feeds Rose.store; afterwards everything is asked for anew. */
  poll.hold = function (held) {
    poll.held = held;
    poll.asked = null;
    if (held) return;
    Rose.store.bootId = null;
    Rose.store.cursor = 0;
    if (!window.RoseRecording) ask();
  };
})(window.Rose);
