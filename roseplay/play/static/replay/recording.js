/* Reads a recorded run: a header, then a frame per line. Long idle times are shortened to a second. Lines are checked
 * against the shape that the server's own reader uses, so that views can rely on the types of their data. */
import { given } from "../shared/given.js";
import { firstWhere } from "../shared/numbers.js";
import { check, frameShape, isObject } from "../shared/shape.js";

const MARK = "roseplay_recording";
const LONG_IDLE_MS = 2000, IDLE_MS = 1000, TAIL_MS = 600; // what is left of a pause, and what follows the last frame
const KEEP_BYTES = 32e6; // a larger recording is not kept parsed
const LARGEST = 400e6; // characters; browsers' strings cannot be much longer

/** The run in `text`; throws an Error that says what is wrong with it. Positions are ms from its start, long pauses
 * shortened. */
export class Recording {
  constructor(text, name) {
    if (text.length > LARGEST) {
      throw new Error(`${name} is too large to be shown (${Math.round(text.length / 1e6)} MB): record a shorter run.`);
    }
    this.name = name;
    this.lines = text.split("\n");
    const whole = this.lines[this.lines.length - 1] === "";
    if (whole) this.lines.pop();
    if (!this.lines.length) throw new Error(`${name} is empty.`);
    this.header = headerOf(this.lines.shift(), name);
    this.columns = this.header.columns;
    this.shape = readPart(name, "the header", () => frameShape(this.columns, given.recordingShape));
    this.kept = text.length < KEEP_BYTES ? [] : null; // the frames, parsed
    this.due = []; // the position of each frame
    this.times = []; // the engine's time of each frame
    this.length = this.read(whole) + TAIL_MS;
    if (!this.due.length) throw new Error(`${name} has no frames: nothing happened while it was recorded.`);
  }

  /* Returns the position of the last frame. */
  read(whole) {
    const { lines, name, header: { snapshot } } = this;
    let open = snapshot.requests.length, last = snapshot.t, position = 0;
    for (let i = 0; i < lines.length; i++) {
      const frame = frameOf(lines[i], this.shape, i + 2, name, i === lines.length - 1 && !whole);
      if (!frame) break;
      const pause = Math.max(0, frame.t - last);
      position += open === 0 && pause > LONG_IDLE_MS ? IDLE_MS : pause;
      last = frame.t;
      this.due.push(position);
      this.times.push(frame.t);
      for (const [, event] of frame.requests) open += event === "submitted" ? 1 : event === "finished" ? -1 : 0;
      if (this.kept) this.kept.push(frame);
    }
    return position;
  }

  get count() {
    return this.due.length;
  }

  /** @returns {import("../shared/records.js").Frame} */
  frame(i) {
    return this.kept ? this.kept[i] : JSON.parse(this.lines[i]);
  }

  /** How many frames are due by a position. */
  dueBy(ms) {
    return firstWhere(0, this.due.length, (i) => this.due[i] > ms);
  }

  /** The engine's time at a position. */
  time(ms) {
    const { times, due } = this, next = this.dueBy(ms);
    const from = next ? times[next - 1] : this.header.snapshot.t, since = ms - (next ? due[next - 1] : 0);
    return next < times.length ? Math.min(times[next], from + since) : from + since;
  }
}

function json(line) {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

function headerOf(line, name) {
  const header = json(line);
  if (!isObject(header) || !(MARK in header)) throw new Error(`${name} is not a recording of roseplay.`);
  const format = header[MARK], { format: read } = given.recordingShape;
  if (format !== read) {
    throw new Error(`${name} has format ${String(format).slice(0, 40)}, and this page reads format ${read}.`);
  }
  readPart(name, "the header", () => {
    check(header, given.recordingShape.header, "");
    checkRuns(header.snapshot.blocks ?? []);
  });
  const { knobs } = given.settings, defaults = Object.entries(knobs).map(([name, setting]) => [name, setting.default]);
  header.knobs = { ...Object.fromEntries(defaults), ...header.knobs }; // a recording may be older than a knob
  return header;
}

/* Returns the result of `read`; turns its Errors into one that says that this part of the recording is damaged. */
function readPart(name, part, read) {
  try {
    return read();
  } catch (error) {
    throw new Error(`${name} is damaged: ${part}: ${error.message}.`);
  }
}

/* Throws an Error for a run of blocks beyond the largest pool, since a state is kept for each block. */
function checkRuns(blocks) {
  const { most_blocks } = given.recordingShape;
  for (const [block, , , , count = 0] of blocks) {
    if (block + count > most_blocks) {
      throw new Error(`blocks, count should end at block ${most_blocks.toLocaleString("en-US")} at most`);
    }
  }
}

/* A frame, or null for an incomplete last line, whose writer was ended in the middle of it. */
function frameOf(line, shape, number, name, mayBeCut) {
  const frame = json(line);
  try {
    if (frame === undefined) throw new Error("it is not JSON");
    check(frame, shape, "");
    checkRuns(frame.blocks);
  } catch (error) {
    if (mayBeCut) return null;
    throw new Error(`${name} is damaged: line ${number}: ${error.message}.`);
  }
  return frame;
}
