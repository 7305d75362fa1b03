"""Measures a real page: a script to run in the browser, and the figures that it returns.

A token counts as on the screen at the first animation frame after the page has put its text into its lane, which the
page does while it handles a poll's reply (``missing`` counts checks that did not find it there). Its own time is from
the engine's clock; the page's copy of that clock lags by the transfer of a reply (a few milliseconds on one machine).
"""

from __future__ import annotations

from typing import Any

# Run before the page's own scripts. `roseProbe.start()` begins; `roseProbe.read()` returns figures and goes on.
SCRIPT = """
window.roseProbe = (function () {
  const waiting = [], shown = [], frames = [], told = new Map();
  let began = 0, from = 0, lookedAt = 0, looked = 0, missing = 0;

  /* Looking into the page costs time of its own, so only one text in a while is looked for. */
  function look({ lane, tail }) {
    looked++;
    const text = document.querySelector(`#rp-lane-${lane}`)?.textContent || "";
    if (!text.includes(tail)) missing++;
  }

  function frame(now) {
    frames.push(now);
    const clock = Rose.clock();
    if (waiting.length && now - lookedAt > 500) {
      lookedAt = now;
      look(waiting[waiting.length - 1]);
    }
    for (const { rid, first, last } of waiting.splice(0)) shown.push({ rid, first, last, clock });
    requestAnimationFrame(frame);
  }

  function own(news) {
    for (const { lane, rid, turns, tokens } of news.lanes || []) {
      const { text } = turns.find((turn) => turn.rid === rid) || {};
      const first = told.get(rid) || 0;
      told.set(rid, tokens);
      // the end of a text may be blank, and blanks are folded on the screen
      const tail = (text || "").trim().slice(-12);
      if (first && tokens > first && tail) waiting.push({ lane, rid, first, last: tokens, tail });
    }
  }

  /* ms from each token to the screen; tokens whose times have been overwritten are left out */
  function latencies() {
    const times = new Map(), { tokens } = Rose.store, found = [];
    for (let i = tokens.first; i < tokens.end; i++) {
      const slot = i & tokens.mask, rid = tokens.request_id[slot];
      if (!times.has(rid)) times.set(rid, []);
      times.get(rid).push(tokens.t[slot]);
    }
    for (const { rid, first, last, clock } of shown) {
      const own = times.get(rid) || [], lost = Rose.store.requests.get(rid).tokens - own.length;
      for (let n = Math.max(first, lost); n < Math.min(last, lost + own.length); n++) found.push(clock - own[n - lost]);
    }
    return found.sort((a, b) => a - b);
  }

  function bytes() {
    const polls = performance.getEntriesByType("resource").filter((e) => e.name.includes("/ui/delta") && e.startTime >= began);
    return { polls: polls.length, bytes: polls.reduce((sum, e) => sum + e.transferSize, 0) };
  }

  return {
    start() {
      performance.setResourceTimingBufferSize(100000);
      performance.clearResourceTimings();
      began = performance.now();
      from = Rose.store.tokens.end;
      shown.length = frames.length = waiting.length = looked = missing = 0;
      if (!told.size) {
        Rose.on("own", own);
        requestAnimationFrame(frame);
      }
    },
    read() {
      const seconds = (performance.now() - began) / 1000, found = latencies();
      const gaps = frames.slice(1).map((t, i) => t - frames[i]);
      return {
        seconds, ...bytes(), tokens: Rose.store.tokens.end - from, frames: frames.length,
        longest_frame_ms: gaps.length ? Math.max(...gaps) : null, latencies: found,
        looked, missing,
      };
    },
  };
})();
"""

# How long the first visit takes and how much it loads; times in ms since the page was requested.
FIRST_VISIT = """() => {
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  const loaded = performance.getEntriesByType("resource").filter((e) => !e.name.includes("/ui/delta"));
  const plotly = loaded.find((e) => e.name.includes("plotly"));
  return {
    first_paint_ms: paint ? paint.startTime : null, requests: loaded.length,
    bytes: loaded.reduce((sum, e) => sum + e.transferSize, 0),
    plotly_transferred: plotly ? plotly.transferSize : null,
  };
}"""


def figures(read: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures to report: rates per second, and p50, p95 and p99 of the time to the screen in ms."""
    from roseplay.traffic.metrics import percentile

    seconds, latencies = read["seconds"], read["latencies"]
    return {
        "tokens_per_s": read["tokens"] / seconds,
        "frames_per_s": read["frames"] / seconds,
        "longest_frame_ms": read["longest_frame_ms"],
        "kb_per_s": read["bytes"] / seconds / 1000,
        "polls_per_s": read["polls"] / seconds,
        "tokens_to_screen": len(latencies),
        "looked": read["looked"],
        "missing": read["missing"],
        "to_screen_ms": {f"p{p}": percentile(latencies, p) for p in (50, 95, 99)},
    }
