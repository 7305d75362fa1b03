/* Types of the data between server and page, and between store and views. Only for the type checker. */

/** @import { AnswerFigures, Columns, DemoCaption, Frame, Info, LoadFigures, RecordedSnapshot } from "./records.js" */

/** @typedef {import("./store.js").Request} Request */
/** @typedef {import("./records.js").Pair} Pair */
/** @typedef {import("./records.js").Said} Said */
/** @typedef {import("./records.js").Sentence} Sentence */

/** An answer of GET /ui/delta, or what a replay makes of a recording. Times are milliseconds of the engine's clock.
 * @typedef {object} Delta
 * @property {string} boot_id which life of the server this is
 * @property {number} next the cursor of the next poll
 * @property {number} [now] the engine's time
 * @property {boolean} [reset] forget everything first
 * @property {Snapshot} [snapshot] with `reset`: what holds now
 * @property {Frame[]} [frames]
 * @property {boolean} [alive] false once the engine has ended
 * @property {string | null} [health] why the engine is overdue, or the page late
 * @property {boolean} [overdue] whether it is the engine
 * @property {{own: boolean, left_s: number} | null} [demo] the demo that is playing
 * @property {string | null} [notice] a line that stays until its reader dismisses it
 * @property {{lanes: LaneNews[], steady?: Steady, traffic?: Played}} [own] what this tab lacks of its lanes, its
 *   steady traffic and what it plays from a file
 * @property {Start} [start] instead of all else, until the engine is live */

/** The newest steady traffic of a tab, `SteadyTraffic.figures` in steady.py: `rate` requests a second for `seconds` so
 * far, prompts of a `kind` that people call `label`, and why it has `stopped` by itself.
 * @typedef {{on: boolean, rate: number, spacing: "poisson" | "even", kind: string, label: string,
 *   max_new_tokens: number, seed: number, sent: number, done: number, waiting: number, seconds: number,
 *   stopped: string | null}} Steady */

/** A file of traffic, `OwnTraffic.figures` in traffic/own_traffic.py: `span_s` is from its first arrival to its last.
 * @typedef {{name: string, requests: number, span_s: number}} TrafficFile */

/** The newest traffic that a tab played from a file: `FileTraffic.figures` in own.py.
 * @typedef {TrafficFile & Pick<Steady, "on" | "seed" | "sent" | "done" | "waiting" | "seconds" | "stopped">} Played */

/** The progress of the engine's start.
 * @typedef {object} Start
 * @property {string} model
 * @property {string} note why the start before failed
 * @property {string | null} back the model that is loaded again if this start is cancelled
 * @property {string} head of the sentence
 * @property {string} more the rest of it
 * @property {string} stage the title of the one that runs, or that failed
 * @property {number | null} share of it that is done
 * @property {{message: string, command: string} | null} failed
 * @property {StartStage[]} stages */

/** `words`: how far it is, or what it is.
 * @typedef {{title: string, words: string, state: "waiting" | "running" | "done" | "skipped" | "failed",
 *   share: number | null, seconds: number | null}} StartStage */

/** What holds now, as in a recording; and of the engine what a recording's header has, and what is live.
 * @typedef {Partial<RecordedSnapshot> & {info?: Info | null, knobs?: Record<string, any>,
 *   columns?: Columns, story?: Said | null, demo?: DemoCaption | null, pace?: Pace}} Snapshot */

/** Values that suit the model's speed: the page's burst size, answer length and rate, and each demo's length or why it
 * is absent.
 * @typedef {{burst: number, answer: number, rate: number,
 *   demos: {name: string, seconds?: number, absent?: string}[]}} Pace */

/** Another server's load at a time; null for figures that it does not report.
 * @typedef {LoadFigures & {t: number, replicas?: Record<string, LoadFigures>}} Load `replicas`: of each engine, by its
 *   name, where there are several behind the server's address */

/** What a tab lacks of one of its lanes, from 1: the stamp to send back with the next poll, all turns by their requests
 * where which there are has changed, and those that are new or have grown; the figures are the newest turn's.
 * @typedef {AnswerFigures & {lane: number, rid: number | null, title: string, have: string, order: number[] | null,
 *   turns: TurnNews[], waiting_ms: number | null, tok_s?: number | null}} LaneNews */

/** What a tab lacks of a turn: `model` is given where it is not the one that runs; `left_out` turns before it had no
 * room in its prompt; `widths` are the lengths of the new tokens in UTF-16 units, `times` hundredths of a millisecond
 * since the token before, of the first one since the page's zero; `late` when late tokens came, which the tab may
 * have, and the gap that was usual then. `no_role`: there is a system prompt, for which the chat template has no role;
 * `thinking`: the prompt ends where the model begins to think.
 * @typedef {{rid: number, question: string, model?: string, left_out: number, text_from: number, text: string,
 *   tokens_from: number, widths: number[], times: number[], late: [t: number, usual: number][], no_role?: boolean,
 *   thinking?: boolean, state?: string, prompt?: number, cached?: number, error?: string | null}} TurnNews */

/** A stretch of view time in ms; tick labels count from `now`.
 * @typedef {{x0: number, x1: number, now: number, live: boolean}} TimeWindow */

export {};
