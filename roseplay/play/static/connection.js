/* Rose.connection: says when what the page shows is no longer news, because the server or the engine behind it does not answer.
 *
 *   Rose.connection.trouble   null while all is well, else {kind, words, stopped}
 *       kind "server": no poll has been answered for a while; "engine": the engine has ended; "slow": it is overdue, in the server's words
 *       stopped: nothing moves any more: figures, the clock and the lanes stand still, and whatever would need an answer is locked
 * Emits "connection" when that has changed. It judges at every answer of Rose.poll and four times a second, and ends by itself. */
"use strict";
(function (Rose) {
  const LOST_MS = 2500, LOOK_MS = 250;
  const NEEDS_AN_ANSWER = [
    "#rp-sched", "#rp-opt", "#rp-traffic", "#rp-say", "#rp-sampling", ".rp-lane header", ".rp-hint", ".rp-edit", "#lab-run", "#lab-stop", "#lab-report",
    "#lab-link", ".rp-demo",
  ].join();
  const { poll } = Rose, connection = (Rose.connection = { trouble: null });
  let bar = null, said = null, age = null;

  function judge() {
    if (window.RoseRecording || poll.held) return null;
    if (poll.asked !== null && performance.now() - poll.asked > LOST_MS) {
      return { kind: "server", words: "The server does not answer.", stopped: true };
    }
    if (poll.alive === false) return { kind: "engine", words: "The engine has stopped: restart it.", stopped: true };
    return poll.health ? { kind: "slow", words: poll.health, stopped: false } : null;
  }

  function look() {
    const before = connection.trouble, now = judge();
    if ((before && before.words) !== (now && now.words)) {
      connection.trouble = now;
      const stopped = Boolean(now && now.stopped);
      document.body.classList.toggle("rp-stopped", stopped);
      Rose.time.stop(stopped);
      Rose.lock("connection", stopped ? now.words : null, NEEDS_AN_ANSWER);
      if (now && now.kind === "server") poll.tell("lost", "reconnecting");
      show();
      Rose.emit("connection", now);
    }
    if (now && now.kind === "server") Rose.write(age, poll.heard ? `last news ${Math.round((performance.now() - poll.heard) / 1000)} s ago.` : "no news yet.");
  }

  // ---- the banner -------------------------------------------------------------------------------------------
  function build() {
    said = Rose.element("span");
    said.setAttribute("role", "alert");
    age = Rose.element("span", "rp-age"); // outside of the alert: it changes every second
    bar = Rose.element("section", "", Rose.element("b", "", "!"), said, age, Rose.element("span", "rp-off", "Sending and settings are off until then."));
    bar.id = "rp-banner";
    bar.setAttribute("aria-label", "Connection");
    document.body.append(bar);
  }

  function show() {
    if (!bar) build();
    const { trouble } = connection;
    bar.hidden = !trouble;
    document.body.classList.toggle("rp-bannered", Boolean(trouble));
    if (!trouble) return;
    bar.dataset.kind = trouble.kind;
    Rose.write(said, trouble.kind === "server" ? `${trouble.words} Reconnecting;` : trouble.words);
    age.hidden = trouble.kind !== "server";
    bar.lastElementChild.hidden = !trouble.stopped;
  }

  Rose.on("heard", look);
  Rose.on("replay", look);
  setInterval(look, LOOK_MS);
})(window.Rose);
