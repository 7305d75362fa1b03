/* Rose.store: everything the page remembers of the engine, filled from the deltas of GET /ui/delta.
 *
 *   Rose.store.apply(delta)   takes one answer of the poller; then "reset" (if it starts anew) and "frame" are emitted
 *   .steps .tokens .entries   rings of typed arrays: bounded however long the page stays open
 *   .requests                 Map rid -> what is known of a request; finished ones go once no view can reach them
 *   .bursts                   the last few bursts with their requests' TTFT, kept longer than the requests
 *   .knobs .marks             the settings now, and each change of them {t, step, changes: {name: [old, new]}}
 *   .stats .info .bootId      the server's latest figures, what the engine is, and which life of it this is
 *
 * Also here, because everybody needs them: Rose.on and Rose.emit. All times are milliseconds of the engine's clock since it
 * started; time.js says which of them is now, and where a view draws them. */
"use strict";
window.Rose = window.Rose || {};
(function (Rose) {
  // ---- events -----------------------------------------------------------------------------------------------
  const listeners = new Map();

  /** Calls `fn` for each event `name`; answers with a function that ends it. */
  Rose.on = function (name, fn) {
    if (!listeners.has(name)) listeners.set(name, new Set());
    listeners.get(name).add(fn);
    return () => listeners.get(name).delete(fn);
  };

  Rose.emit = function (name, ...args) {
    for (const fn of listeners.get(name) || []) {
      try {
        fn(...args);
      } catch (error) {
        console.error(`${name} listener:`, error); // one view's mistake must not stop the others
      }
    }
  };

  // ---- rings ------------------------------------------------------------------------------------------------
  /* Rows are numbered from 0 for ever; row i lies in slot i & mask. Rows before `first` are overwritten. */
  class Ring {
    constructor(capacity, columns) {
      this.capacity = capacity;
      this.mask = capacity - 1; // capacity is a power of two
      this.end = 0;
      for (const [name, Kind] of Object.entries(columns)) this[name] = new Kind(capacity);
    }

    get first() {
      return Math.max(0, this.end - this.capacity);
    }

    get size() {
      return this.end - this.first;
    }

    /** The slot of a new row; the caller fills its columns. */
    push() {
      return this.end++ & this.mask;
    }

    clear() {
      this.end = 0;
    }

    /** First row whose `column` is at least `value`; the column must not fall. */
    lowerBound(column, value) {
      let low = this.first, high = this.end;
      while (low < high) {
        const middle = Math.floor((low + high) / 2);
        if (column[middle & this.mask] < value) low = middle + 1;
        else high = middle;
      }
      return low;
    }
  }

  const F64 = Float64Array, F32 = Float32Array, I32 = Int32Array;
  const tokens = new Ring(1 << 16, { rid: I32, step: I32, t: F64, itl: F32 }); // itl: NaN for a first token
  const steps = new Ring(1 << 13, {
    step: I32, t0: F64, t1: F64, prompt: I32, decode: I32, cached: I32, shared: I32, running: I32, waiting: I32,
    free: I32, cachedBlocks: I32, active: I32, sharedBlocks: I32, device: F32, host: F32, copies: I32, graph: Array, // of graph: true, false, or null where nobody told
    entry: F64, entries: I32, preempted: Array, // entries are the rows [entry, entry + entries) of the next ring
  });
  const entries = new Ring(1 << 18, { rid: I32, prompt: I32, decode: I32, computed: I32, target: I32, cached: I32, shared: I32 });

  const KEEP_MS = 120000; // of view time: finished requests stay this long
  const KEEP_REQUESTS = 4096, KEEP_BURSTS = 4, KEEP_MARKS = 256;

  const store = (Rose.store = {
    steps, tokens, entries,
    requests: new Map(), bursts: new Map(), knobs: {}, marks: [], stats: null, info: null,
    bootId: null, cursor: 0, version: 0, open: new Set(), apply, stepRow, request,
  });

  /** The ring row of a step, or -1 when it is not (or no longer) there. */
  function stepRow(step) {
    const row = steps.lowerBound(steps.step, step);
    return row < steps.end && steps.step[row & steps.mask] === step ? row : -1;
  }

  /** What is known of a request; made on the first mention of it. */
  function request(rid) {
    let known = store.requests.get(rid);
    if (!known) {
      known = {
        rid, kind: "api", lane: null, burst: null, prompt: 0, submitted: null, scheduled: null, first: null, finished: null,
        queue: null, ttft: null, e2e: null, reason: null, tokens: 0, error: null, computed: 0, target: 0, cached: 0, shared: 0,
        preempted: [], resumed: [], copied: [],
      };
      store.requests.set(rid, known);
    }
    return known;
  }

  // ---- filling ----------------------------------------------------------------------------------------------
  function apply(delta) {
    if (delta.reset || delta.boot_id !== store.bootId) reset(delta);
    store.cursor = delta.next;
    Rose.time.sync(delta.now);
    for (const frame of delta.frames || []) applyFrame(frame);
    if (delta.frames && delta.frames.length) store.version++;
    prune();
    Rose.emit("frame", delta);
  }

  function reset(delta) {
    const anew = delta.boot_id !== store.bootId;
    for (const ring of [steps, tokens, entries]) ring.clear();
    store.requests.clear();
    store.bursts.clear();
    store.open.clear();
    store.marks.length = 0;
    store.stats = null;
    store.bootId = delta.boot_id;
    store.version++;
    Rose.time.reset();
    const snapshot = delta.snapshot || {};
    store.info = snapshot.info || (anew ? null : store.info);
    store.knobs = { ...snapshot.knobs };
    for (const [rid, meta] of snapshot.requests || []) applyMeta(rid, meta);
    Rose.emit("reset", delta);
  }

  /* A snapshot's request: the same fields as its events, and the times of those that have happened. */
  function applyMeta(rid, meta) {
    const known = request(rid);
    for (const [name, value] of Object.entries(meta)) if (name !== "rid" && Object.hasOwn(known, name) && !Array.isArray(known[name])) known[name] = value;
    known.prompt = meta.prompt_tokens ?? known.prompt;
    known.queue = meta.queue_ms ?? known.queue;
    known.ttft = meta.ttft_ms ?? known.ttft;
    known.e2e = meta.e2e_ms ?? known.e2e;
    if (known.reason === null && known.finished === null) store.open.add(rid);
    if (known.burst !== null) burst(known);
  }

  function applyFrame(frame) {
    const events = frame.requests || [];
    for (const event of events) if (event[1] === "submitted") applyRequest(event);
    for (const step of frame.steps || []) applyStep(step);
    for (const token of frame.tokens || []) applyToken(token);
    for (const event of events) if (event[1] !== "submitted") applyRequest(event);
    for (const [t, step, changes] of frame.knobs || []) applyKnobs(t, step, changes);
    if (frame.stats) store.stats = frame.stats;
  }

  function applyRequest([rid, event, t, more = {}]) {
    const known = request(rid);
    if (event === "submitted") {
      known.submitted = t;
      known.kind = more.kind ?? known.kind;
      known.lane = more.lane ?? null;
      known.burst = more.burst ?? null;
      known.prompt = more.prompt_tokens ?? 0;
      if (known.burst !== null) burst(known);
      Rose.time.work(t, t);
      if (known.finished === null) store.open.add(rid);
    } else if (event === "scheduled") {
      known.scheduled = t;
      known.queue = more.queue_ms ?? null;
    } else if (event === "first") {
      known.first = t;
      known.ttft = more.ttft_ms ?? null;
    } else if (event === "finished") {
      known.finished = t;
      known.reason = more.reason ?? null;
      known.tokens = more.tokens ?? known.tokens;
      known.ttft = more.ttft_ms ?? known.ttft;
      known.e2e = more.e2e_ms ?? null;
      known.error = more.error ?? null;
      store.open.delete(rid);
    }
  }

  function applyStep(row) {
    const [step, t0, t1, prompt, decode, cached, shared, running, waiting, free, cachedBlocks, active, sharedBlocks,
      device, host, copies, parts, preempted, copied, graph] = row;
    Rose.time.work(t0, t1);
    const i = steps.push();
    steps.step[i] = step; steps.t0[i] = t0; steps.t1[i] = t1;
    steps.prompt[i] = prompt; steps.decode[i] = decode; steps.cached[i] = cached; steps.shared[i] = shared;
    steps.running[i] = running; steps.waiting[i] = waiting;
    steps.free[i] = free; steps.cachedBlocks[i] = cachedBlocks; steps.active[i] = active; steps.sharedBlocks[i] = sharedBlocks;
    steps.device[i] = device; steps.host[i] = host; steps.copies[i] = copies; steps.graph[i] = graph ?? null;
    steps.entry[i] = entries.end; steps.entries[i] = parts.length;
    steps.preempted[i] = preempted && preempted.length ? preempted : null;
    for (const [rid, p, d, computed, target, c, s] of parts) {
      const e = entries.push();
      entries.rid[e] = rid; entries.prompt[e] = p; entries.decode[e] = d;
      entries.computed[e] = computed; entries.target[e] = target; entries.cached[e] = c; entries.shared[e] = s;
      const known = request(rid);
      known.computed = computed; known.target = target; known.cached = c; known.shared = s;
      if (known.preempted.length > known.resumed.length) known.resumed.push(t0);
    }
    for (const rid of preempted || []) {
      const known = request(rid);
      if (known.preempted.length > known.resumed.length) known.resumed.push(t0); // again before it ran
      known.preempted.push(t0);
    }
    for (const rid of copied || []) request(rid).copied.push(t0);
  }

  function applyToken([rid, t, itl, step]) {
    const i = tokens.push();
    tokens.rid[i] = rid; tokens.t[i] = t; tokens.itl[i] = itl === null ? NaN : itl; tokens.step[i] = step;
  }

  function applyKnobs(t, step, changes) {
    store.marks.push({ t, step, changes });
    if (store.marks.length > KEEP_MARKS) store.marks.shift();
    for (const [name, [, value]] of Object.entries(changes)) store.knobs[name] = value;
  }

  function burst(known) {
    let group = store.bursts.get(known.burst);
    if (!group) {
      group = { id: known.burst, t: known.submitted, requests: [] };
      store.bursts.set(known.burst, group);
      while (store.bursts.size > KEEP_BURSTS) store.bursts.delete(Math.min(...store.bursts.keys()));
    }
    if (!group.requests.includes(known)) group.requests.push(known);
  }

  function prune() {
    const horizon = Rose.time.now() - KEEP_MS;
    for (const [rid, known] of store.requests) {
      if (known.finished === null) continue;
      const many = store.requests.size > KEEP_REQUESTS;
      if (many || Rose.time.x(known.finished) < horizon) store.requests.delete(rid);
      else break; // they finish roughly in the order in which they came; the next call gets the rest
    }
  }
})(window.Rose);
