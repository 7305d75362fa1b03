/* Rose.recording: reads a recorded run, a header and then a frame a line (roseplay/play/recording/recorder.py writes them).
 *
 *   Rose.recording.parse(text, name)   {name, header, count, length, frame(i), at(i), time(ms)}; throws an Error that says what is wrong
 *     .at(i)      ms from the start at which frame i is due
 *     .time(ms)   the engine's time then
 * Where nobody had anything to do for long, the recording waits a second instead. */
"use strict";
(function (Rose) {
  const FORMAT = 1, MARK = "roseplay_recording";
  const LONG_IDLE_MS = 2000, IDLE_MS = 1000, TAIL_MS = 600; // what stays of a pause, and what follows the last frame
  const KEEP_BYTES = 32e6; // a larger recording is not kept parsed
  const LISTS = ["steps", "tokens", "requests", "knobs", "blocks"];

  function json(line) {
    try {
      return JSON.parse(line);
    } catch {
      return undefined;
    }
  }

  function headerOf(line, name) {
    const header = json(line);
    if (!header || typeof header !== "object" || !(MARK in header)) throw new Error(`${name} is no recording of roseplay.`);
    if (header[MARK] !== FORMAT) throw new Error(`${name} has format ${header[MARK]}, and this page reads format ${FORMAT}.`);
    for (const part of ["info", "knobs", "snapshot"]) {
      if (!header[part] || typeof header[part] !== "object") throw new Error(`${name} is damaged: its header has no ${part}.`);
    }
    return header;
  }

  const isFrame = (frame) => Boolean(frame) && typeof frame.t === "number" && LISTS.every((list) => Array.isArray(frame[list]));

  function parse(text, name) {
    const lines = text.split("\n"), whole = lines[lines.length - 1] === "";
    if (whole) lines.pop();
    if (!lines.length) throw new Error(`${name} is empty.`);
    const header = headerOf(lines.shift(), name), kept = text.length < KEEP_BYTES ? [] : null;
    const due = [], times = [], start = header.snapshot.t || 0;
    let open = (header.snapshot.requests || []).length, last = start, position = 0, steps = 0, tokens = 0, requests = 0;
    for (let i = 0; i < lines.length; i++) {
      const frame = json(lines[i]);
      if (!isFrame(frame)) {
        if (i === lines.length - 1 && !whole) break; // its writer was ended in the middle of a line
        throw new Error(`${name} is damaged: line ${i + 2} is no frame.`);
      }
      const pause = Math.max(0, frame.t - last);
      position += open === 0 && pause > LONG_IDLE_MS ? IDLE_MS : pause;
      last = frame.t;
      due.push(position);
      times.push(frame.t);
      for (const [, event] of frame.requests) open += event === "submitted" ? 1 : event === "finished" ? -1 : 0;
      requests += frame.requests.filter((event) => event[1] === "submitted").length;
      steps += frame.steps.length;
      tokens += frame.tokens.length;
      if (kept) kept.push(frame);
    }
    if (!due.length) throw new Error(`${name} has no frames: nothing happened while it was recorded.`);

    /** How many frames are due by a position. */
    function dueBy(ms) {
      let low = 0, high = due.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (due[middle] <= ms) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    function time(ms) {
      const next = dueBy(ms), from = next ? times[next - 1] : start, since = ms - (next ? due[next - 1] : 0);
      return next < times.length ? Math.min(times[next], from + since) : from + since;
    }

    return {
      name, header, count: due.length, length: position + TAIL_MS, steps, tokens, requests, dueBy, time,
      at: (i) => due[i], frame: (i) => (kept ? kept[i] : JSON.parse(lines[i])),
    };
  }

  Rose.recording = { parse };
})(window.Rose);
