/* Rose.recording: reads a recorded run, a header and then a frame a line (roseplay/play/recording/recorder.py writes them).
 *
 *   Rose.recording.parse(text, name)   {name, header, count, length, frame(i), at(i), time(ms)}; throws an Error that says what is wrong
 *     .at(i)      ms from the start at which frame i is due
 *     .time(ms)   the engine's time then
 * Where nobody had anything to do for long, the recording waits a second instead. Lines are checked against the shape that the
 * server's own reader uses (recording/shape.py), so that the views may rely on the types of what they draw. */
"use strict";
(function (Rose) {
  const FORMAT = 1, MARK = "roseplay_recording";
  const LONG_IDLE_MS = 2000, IDLE_MS = 1000, TAIL_MS = 600; // what stays of a pause, and what follows the last frame
  const KEEP_BYTES = 32e6; // a larger recording is not kept parsed
  const LARGEST = 400e6; // characters; a browser's strings hold little more
  const LONGEST_NAME = 200, FAR_SCALAR = 1e15;

  // ---- the shape of a line ----------------------------------------------------------------------------------
  const number = (value) => value.toLocaleString("en-US");

  /* What a value of a shape is, in words. */
  function words({ type, least, most, values }) {
    if (type === "number" || type === "whole") return `a ${type === "whole" ? "whole " : ""}number from ${number(least)} to ${number(most)}`;
    if (type === "choice") return `one of ${values.join(", ")}`;
    return { text: "text", flag: "true or false", scalar: "a number, text, true, false or null", list: "a list", row: "a list of rows", object: "an object" }[type];
  }

  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const IS = {
    number: (value, { least, most }) => Number.isFinite(value) && value >= least && value <= most,
    whole: (value, { least, most }) => Number.isInteger(value) && value >= least && value <= most,
    text: (value, { most }) => typeof value === "string" && value.length <= most,
    flag: (value) => typeof value === "boolean",
    choice: (value, { values }) => values.includes(value),
    scalar: (value, { most }) => value === null || typeof value === "boolean" || (typeof value === "string" && value.length <= most) ||
      (typeof value === "number" && Math.abs(value) <= FAR_SCALAR),
    list: Array.isArray,
    row: Array.isArray,
    object: isObject,
  };

  /* Throws an Error that says where a value has another shape. */
  function check(value, shape, where) {
    if (value === null && shape.null) return;
    if (!IS[shape.type](value, shape)) throw new Error(`${where || "it"} should be ${words(shape)}`);
    if (shape.type === "list") for (const one of value) check(one, shape.of, where);
    else if (shape.type === "row") checkRow(value, shape, where);
    else if (shape.type === "object") checkFields(value, shape, where ? `${where}, ` : "");
  }

  function checkRow(row, { columns, missing }, where) {
    const names = Object.keys(columns);
    if (row.length > names.length || row.length < names.length - missing) throw new Error(`${where} should have rows of ${names.length} columns`);
    row.forEach((value, i) => check(value, columns[names[i]], `${where}, ${names[i]}`));
  }

  function checkFields(value, { fields, rest }, before) {
    for (const [name, field] of Object.entries(fields)) {
      if (Object.hasOwn(value, name)) check(value[name], field, before + name);
      else if (!field.optional) throw new Error(`${before}${name} is missing`);
    }
    if (!rest) return;
    for (const [name, one] of Object.entries(value)) {
      if (Object.hasOwn(fields, name)) continue;
      if (name.length > LONGEST_NAME) throw new Error(`${before}a name is longer than ${LONGEST_NAME} characters`);
      check(one, rest, before.slice(0, -2));
    }
  }

  // ---- lines ------------------------------------------------------------------------------------------------
  function json(line) {
    try {
      return JSON.parse(line);
    } catch {
      return undefined;
    }
  }

  function headerOf(line, name) {
    const header = json(line);
    if (!isObject(header) || !(MARK in header)) throw new Error(`${name} is no recording of roseplay.`);
    if (header[MARK] !== FORMAT) throw new Error(`${name} has format ${String(header[MARK]).slice(0, 40)}, and this page reads format ${FORMAT}.`);
    try {
      check(header, window.RoseRecordingShape.header, "");
    } catch (error) {
      throw new Error(`${name} is damaged: the header: ${error.message}.`);
    }
    return header;
  }

  /* A frame, or null for a last line that is not whole: its writer was ended in the middle of it. */
  function frameOf(line, number, name, mayBeCut) {
    const frame = json(line);
    try {
      if (frame === undefined) throw new Error("it is not JSON");
      check(frame, window.RoseRecordingShape.frame, "");
    } catch (error) {
      if (mayBeCut) return null;
      throw new Error(`${name} is damaged: line ${number}: ${error.message}.`);
    }
    return frame;
  }

  function parse(text, name) {
    if (text.length > LARGEST) throw new Error(`${name} is too large to be shown (${Math.round(text.length / 1e6)} MB): record a shorter run.`);
    const lines = text.split("\n"), whole = lines[lines.length - 1] === "";
    if (whole) lines.pop();
    if (!lines.length) throw new Error(`${name} is empty.`);
    const header = headerOf(lines.shift(), name), kept = text.length < KEEP_BYTES ? [] : null;
    const due = [], times = [], start = header.snapshot.t;
    let open = header.snapshot.requests.length, last = start, position = 0, steps = 0, tokens = 0, requests = 0;
    for (let i = 0; i < lines.length; i++) {
      const frame = frameOf(lines[i], i + 2, name, i === lines.length - 1 && !whole);
      if (!frame) break;
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
