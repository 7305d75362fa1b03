/* Rose.replay: plays a recorded run into Rose.store as the poller would, at the recording's own pace or another.
 *
 *   Rose.replay.open(text, name)   show a recording from its beginning; throws an Error that says what is wrong with it
 *   .play() .pause() .seek(ms) .live()   `live` returns to the engine, where there is one
 *   .on .recording .playing .speed .at()   at(): ms from the recording's start, however fast it runs
 * Emits "replay" when any of that has changed, other than by time passing. */
"use strict";
(function (Rose) {
  const TURN_MS = 50;
  const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];

  const replay = (Rose.replay = { on: false, recording: null, playing: false, speed: 1, speeds: SPEEDS, at, open, play, pause, seek, pace, live, served, load });
  let fed = 0, from = 0, since = 0, serial = 0, timer = 0;

  // ---- time -------------------------------------------------------------------------------------------------
  function at() {
    if (!replay.recording) return 0;
    const ran = replay.playing ? (performance.now() - since) * replay.speed : 0;
    return Math.min(replay.recording.length, from + ran);
  }

  /** Hold the position where it is, so that pace or state can change. */
  function settle() {
    from = at();
    since = performance.now();
  }

  function play() {
    if (!replay.on || replay.playing) return;
    if (at() >= replay.recording.length) seek(0);
    settle();
    replay.playing = true;
    Rose.emit("replay");
  }

  function pause() {
    settle();
    replay.playing = false;
    Rose.emit("replay");
  }

  function pace(speed) {
    settle();
    replay.speed = speed;
    Rose.emit("replay");
  }

  function seek(ms) {
    if (!replay.on) return;
    settle();
    const to = Math.max(0, Math.min(replay.recording.length, ms));
    if (to < from) begin();
    from = to;
    feed();
    Rose.emit("replay");
  }

  // ---- feeding ----------------------------------------------------------------------------------------------
  /* From the beginning: the store forgets all, and takes what the recording opens with. */
  function begin() {
    const { header } = replay.recording, { snapshot } = header;
    fed = 0;
    from = 0;
    since = performance.now();
    Rose.replayLanes.begin(snapshot);
    const whole = { ...snapshot, info: header.info, knobs: header.knobs };
    apply({ boot_id: `replay-${++serial}`, next: 1, reset: true, snapshot: whole, frames: [] });
  }

  function feed() {
    const { recording } = replay, due = recording.dueBy(at()), frames = [];
    for (; fed < due; fed++) frames.push(recording.frame(fed));
    if (frames.length) apply({ boot_id: Rose.store.bootId, next: fed + 1, reset: false, frames });
  }

  function apply(delta) {
    delta.now = Rose.clock();
    Rose.store.apply(delta);
    const own = { lanes: Rose.replayLanes.news(delta.frames) };
    Rose.emit("own", own, { ...delta, own });
  }

  function turn() {
    if (!replay.on || !replay.playing) return;
    feed();
    if (at() >= replay.recording.length) pause();
  }

  // ---- opening and leaving ----------------------------------------------------------------------------------
  function open(text, name) {
    const recording = Rose.recording.parse(text, name);
    Rose.poll.hold(true);
    Object.assign(replay, { on: true, recording, playing: false, speed: 1 });
    Rose.time.follow(() => replay.recording.time(at()));
    Rose.emit("select", null);
    Rose.replayLanes.clear();
    begin();
    clearInterval(timer);
    timer = setInterval(turn, TURN_MS);
    Rose.poll.tell("replay", "replay");
    play();
  }

  /** Fetch a recording of this server and show it; answers what went wrong, or "". */
  async function load(address, name) {
    try {
      const answer = await fetch(address);
      if (!answer.ok) throw new Error(`The server answered ${answer.status} for ${name}.`);
      open(await answer.text(), name);
      return "";
    } catch (error) {
      return error.message;
    }
  }

  /** Show the recording that this server was started for. */
  async function served() {
    const problem = await load("/ui/recording", window.RoseRecording);
    if (problem) Rose.poll.tell("lost", problem);
  }

  function live() {
    if (!replay.on) return;
    if (window.RoseRecording) return served();
    clearInterval(timer);
    Object.assign(replay, { on: false, recording: null, playing: false });
    Rose.time.follow(null);
    Rose.emit("select", null);
    Rose.replayLanes.clear();
    Rose.poll.hold(false);
    Rose.emit("replay");
  }
})(window.Rose);
