/* Rose.clock and Rose.time: when it is, for the engine and for the views.
 *
 * Views show the last seconds of *work*. While the engine has nothing to do their clock stands still (a burst stays on the screen
 * until something else happens), and when work begins again the idle stretch is cut out and marked.
 *   Rose.clock()      the engine's now in ms, running smoothly between polls
 *   Rose.time.x(t)    engine time -> view time, both in ms
 *   Rose.time.now()   the right edge of every view
 *   Rose.time.idle()  whether it stands still
 *   Rose.time.cuts    [{from, to, before}] idle stretches left out; `before`: ms cut out before this one
 *   Rose.time.stop(on)   hold the clock where it is, as long as nothing is heard of the engine
 *   Rose.time.follow(now)   from here on it is what now() says, as in a replay; null: what the server says
 * The store calls sync, work and reset. */
"use strict";
(function (Rose) {
  const TAIL_MS = 700, LEAD_MS = 300; // what is left of an idle stretch, after and before work
  const LEAST_CUT_MS = 500; // less is not worth a mark
  const LAG_MS = 150; // a frame is on its way for about this long; the edge waits for it
  const JUMP_MS = 1000; // clocks further apart than this are not drifting, something has happened
  const KEEP_CUTS = 64;

  const clock = { offset: null, last: null, source: null, stopped: null };
  const time = (Rose.time = { cuts: [], lastWork: null });

  // ---- engine time ------------------------------------------------------------------------------------------
  /* Each answer says the engine's time when it was made; it arrives late by the way back, so the largest offset seen
   * is the best. It may sink slowly, should the two clocks drift apart. */
  time.sync = function (engineNow) {
    if (typeof engineNow !== "number" || clock.source) return;
    const offset = engineNow - performance.now();
    if (clock.offset === null || offset > clock.offset || clock.offset - offset > JUMP_MS) clock.offset = offset;
    else clock.offset += (offset - clock.offset) * 0.02;
  };

  time.follow = function (source) {
    clock.source = source;
    clock.offset = clock.last = null;
  };

  time.stop = function (on) {
    if (on !== (clock.stopped !== null)) clock.stopped = on ? Rose.clock() : null;
  };

  time.stopped = () => clock.stopped !== null;

  Rose.clock = function () {
    if (clock.stopped !== null) return clock.stopped;
    if (clock.source) return clock.source();
    if (clock.offset === null) return 0;
    const now = performance.now() + clock.offset;
    clock.last = clock.last === null || clock.last - now > JUMP_MS ? now : Math.max(clock.last, now);
    return clock.last;
  };

  // ---- view time --------------------------------------------------------------------------------------------
  time.reset = function () {
    clock.offset = clock.last = time.lastWork = null;
    time.cuts.length = 0;
  };

  /** There was work from `from` to `to`. */
  time.work = function (from, to) {
    const idleFrom = time.lastWork + TAIL_MS, idleTo = from - LEAD_MS;
    if (time.lastWork !== null && idleTo > idleFrom + LEAST_CUT_MS && !openAt(idleFrom)) {
      const previous = time.cuts[time.cuts.length - 1];
      time.cuts.push({ from: idleFrom, to: idleTo, before: previous ? previous.before + previous.to - previous.from : 0 });
      if (time.cuts.length > KEEP_CUTS) time.cuts.shift();
    }
    time.lastWork = time.lastWork === null ? to : Math.max(time.lastWork, to);
  };

  /* A long pause with somebody waiting is no idleness, it is a stall and has to be seen. */
  function openAt(t) {
    for (const { submitted, finished } of Rose.store.requests.values()) {
      if (submitted !== null && submitted <= t && (finished === null || finished > t)) return true;
    }
    return false;
  }

  time.idle = () => standsStill() && Rose.clock() - LAG_MS > time.lastWork + TAIL_MS;

  const standsStill = () => time.lastWork !== null && Rose.store.open.size === 0;

  time.x = function (t) {
    if (standsStill()) t = Math.min(t, time.lastWork + TAIL_MS);
    for (let i = time.cuts.length - 1; i >= 0; i--) {
      const cut = time.cuts[i];
      if (t >= cut.to) return t - cut.before - (cut.to - cut.from);
      if (t >= cut.from) return cut.from - cut.before;
    }
    return t - (time.cuts.length ? time.cuts[0].before : 0);
  };

  time.now = () => time.x(Rose.clock() - LAG_MS);
})(window.Rose);
