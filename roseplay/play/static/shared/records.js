/* The columns of rows in frames and recordings, and the types of records in them: written by `python docs/records.py`
 * from roseplay/engine/records.py and roseplay/recording/schema.py, which say what each is. */
/** @import { Load } from "./types.js" */
const F64 = Float64Array, I32 = Int32Array;

/** One step as the page and recordings have it. */
export const STEPS = {
  step_id: I32, // number of the step, from 0 in each worker
  prompt_tokens: I32, // of prompts, computed (tokens)
  decode_tokens: I32, // computed for answers, drafts included (tokens)
  cached_tokens: I32, // of prompts, attached from earlier steps' blocks (tokens)
  shared_tokens: I32, // of prompts, attached from blocks that this step computes (tokens)
  recomputed_tokens: I32, // of prompts, that had been computed before a preemption (tokens)
  draft_tokens: I32, // of the decode tokens, that are drafts (tokens)
  accepted_tokens: I32, // of these, that were right, once the step has ended (tokens)
  running: I32, // running after it (requests)
  waiting: I32, // waiting after it (requests)
  blocks_free: I32, // free after it (blocks)
  blocks_cached: I32, // held by no request after it, but findable (blocks)
  blocks_active: I32, // held by one request after it (blocks)
  blocks_shared: I32, // held by several requests after it (blocks)
  swapped_out: I32, // copied to host memory for preempted requests (blocks)
  swapped_in: I32, // copied back (blocks)
  state_slots: I32, // that requests have after it, of a model with recurrent layers (slots)
  states_kept: I32, // that the prefix cache keeps after it (states)
  mask_ms: F64, // a thread beside the model computed which tokens its grammars allow (ms)
  mask_wait_ms: F64, // in which it waited for them (ms)
  replayed: Array, // as a CUDA graph, or on a CPU from a recording; null where no step is
  t0: F64, // when it began (time)
  t1: F64, // when it ended (time)
  device_ms: F64, // time on the device (ms)
  host_ms: F64, // time on the host (ms)
  block_copies: I32, // copied because a request wrote to them (blocks)
  limit: Array, // what has to change for it to be faster, see recording/step_limit.py
  usual_batch: F64, // that steps without prompts computed lately (requests)
};

/** One request's part in a step, for timelines and progress bars. */
export const ENTRIES = {
  request_id: I32,
  prompt_tokens: I32, // of its prompt, computed in this step (tokens)
  decode_tokens: I32, // of its answer, computed in this step (tokens)
  computed: I32, // of its prompt, in its blocks after the step (tokens)
  target: I32, // of its prompt, that it needs in total (tokens)
  cached: I32, // of those in its blocks, attached from earlier steps (tokens)
  shared: I32, // of those in its blocks, attached from requests of the same step (tokens)
};

/** One token as it was published. */
export const TOKENS = {
  request_id: I32,
  t: F64, // when it was published (time)
  itl_ms: F64, // since the one before; null for a first token, 0 if they arrived together (ms)
  step_id: I32, // number of the step that made it
  usual_ms: F64, // the gap that was usual then; null if that is unknown (ms)
  cause: Array, // why it was late, if it was; see recording/late_tokens.py
};

/** What is known of one request. Times are null for what has not happened. */
export const newRequest = () => ({
  // what sent it: traffic of a tab, or a program (api)
  kind: /** @type {"lane" | "burst" | "steady" | "own" | "api"} */ ("api"),
  lane: /** @type {number | null} */ (null), // number of its lane in the tab, from 1
  burst: /** @type {number | null} */ (null), // number of its burst
  tenant: /** @type {number | null} */ (null), // number of its tenant
  priority: 0, // its priority
  thinking: false, // its prompt ends where the model begins to think
  computed: 0, // of its prompt, in its blocks (tokens)
  target: 0, // of its prompt, that it needs (tokens)
  cached: 0, // of those in its blocks, attached from earlier steps (tokens)
  shared: 0, // of those in its blocks, attached from requests of the same step (tokens)
  prompt_tokens: 0, // in its prompt (tokens)
  arrived: /** @type {number | null} */ (null), // when it was due; a busy engine may take it later (time)
  submitted: /** @type {number | null} */ (null), // when it was submitted (time)
  scheduled: /** @type {number | null} */ (null), // when a step first worked on it (time)
  first: /** @type {number | null} */ (null), // when its first token came (time)
  last: /** @type {number | null} */ (null), // when its newest token came (time)
  finished: /** @type {number | null} */ (null), // when it ended (time)
  queue_ms: /** @type {number | null} */ (null), // from its submission until it was scheduled (ms)
  sent_ms: /** @type {number | null} */ (null), // until its last byte was sent to another server (ms)
  ttft_ms: /** @type {number | null} */ (null), // from its submission until its first token (ms)
  ttft_parts: /** @type {number[] | null} */ (null), // of this: in line, for blocks, for budget, computing (ms)
  e2e_ms: /** @type {number | null} */ (null), // from its submission until it ended (ms)
  itl_p50: /** @type {number | null} */ (null), // the median gap between its tokens (ms)
  itl_max: /** @type {number | null} */ (null), // the longest gap between its tokens (ms)
  tokens: 0, // generated so far (tokens)
  preemptions: 0, // how often it lost its blocks
  miss: /** @type {Miss | null} */ (null), // why no more of its prompt was cached, from its first token on
  reason: /** @type {string | null} */ (null), // why it ended
  error: /** @type {string | null} */ (null), // the error that ended it
});

/** @typedef {ReturnType<typeof newRequest>} RequestRecord */

/** Why part of a request's prompt was not cached, as far as all tabs may know; see ``core.cache_miss.Miss``.
 * @typedef {{reason: string, found: number, position: number | null, request: number | null, step: number | null}}
 *   Miss */

/** The load that a server reports in its metrics; ``None`` for what they do not include.
 * @typedef {{running: number | null, waiting: number | null, kv_usage: number | null,
 *   prefix_queries: number | null, prefix_hits: number | null, preemptions: number | null,
 *   generation_tokens: number | null, computed_tokens: number | null, external_tokens: number | null,
 *   steps: number | null, step_tokens: number | null, first_tokens: number | null, ttft_s: number | null,
 *   gaps: number | null, itl_s: number | null, ended: number | null, queue_s: number | null,
 *   prefill_s: number | null, decode_s: number | null, draft_tokens: number | null, accepted_tokens: number | null,
 *   rejected: number | null, deferred: number | null, awake: number | null}} LoadFigures */

/** Properties of an engine, known once its model is loaded.
 * @typedef {{model: string, architecture: string, device: string, dtype: string, attention: string,
 *   num_parameters: number, weight_bytes: number, vocab_size: number, block_size: number, num_blocks: number,
 *   max_model_len: number, kv_bytes_per_token: number, threads: number, cuda_graphs?: number,
 *   no_cuda_graphs?: string | null, max_step_tokens?: number | null, choices?: Choice[], state_slots?: number,
 *   state_snapshots?: number, state_bytes?: number, host_blocks?: number, decode_s?: number,
 *   prompt_token_s?: number, server?: string | null, server_settings?: Record<string, any>,
 *   eos_token_ids?: number[], simulated?: string | null, evidence?: string | null, evidence_kind?: string | null,
 *   knob_limits?: Record<string, any>, sampling_defaults?: Record<string, any>}} Info */

/** How one part of a step is computed on this machine.
 * @typedef {{part: string, chosen: string, why?: string, slow?: string | null}} Choice */

/** @typedef {{steps: string[], entries: string[], tokens: string[]}} Columns */

/** @typedef {[block: number, references: number, owner: number, findable: number, count?: number]} BlockRow */

/** @typedef {[slot: number, request: number, tokens: number]} StateRow */

/** @typedef {[text: string, style: string][]} Sentence */

/** @typedef {{about: string, t: number, lines: Sentence[], figures?: Record<string, string>[], burst?: number,
 *   compared?: number}} Said */

/** @typedef {{title: string, before: string, after: string, unit: string, mark: string}} PairFigure */

/** @typedef {{title: Sentence, gaps: [t: number, ms: number][], around: [t: number, ms: number][], firsts: number[],
 *   longest?: [t: number, ms: number], steps?: [t0: number, t1: number, tokens: number][], reader?: number[],
 *   first?: number}} Side */

/** @typedef {{sentence: Sentence, about: string, shows: string, longest: string, moment: string, unit: string,
 *   boxes?: string, sides: [before: Side, after: Side], figures: PairFigure[]}} Pair */

/** @typedef {{of: "gap" | "step" | "preempted" | "rows" | "element", id?: string, t?: number, request?: number,
 *   step?: number, burst?: number, requests?: number[], label?: string}} Ring */

/** @typedef {{name?: string, title?: string, scene?: number, scenes?: number, begun?: number, seconds?: number,
 *   span_ms?: number, caption?: Sentence, answers?: string[], guess?: string, figures?: Record<string, string>,
 *   rings?: Ring[], clients?: any[][], over?: boolean}} DemoCaption */

/** @typedef {{tok_s?: number | null, running?: number | null, waiting?: number | null, kv_total?: number | null,
 *   kv_free?: number | null, kv_cached?: number | null, kv_active?: number | null, kv_shared?: number | null,
 *   kv_used?: number | null, saved_tokens?: number | null, saved_pct?: number | null, in_all?: {requests?: number,
 *   prompt_tokens?: number, computed?: number, saved?: number, blocks_saved?: number, cached?: number,
 *   shared?: number} | null, step?: number | null, saturated?: boolean}} Stats */

/** @typedef {{burst: number, kind: string, label: string, size: number, seed: number, answer?: number, done: number,
 *   prompt_tokens: number, computed: number, saved: number, cached?: number, shared?: number, blocks_saved: number,
 *   ttft_p50: number | null, ttft_p95: number | null}} BurstFigures */

/** @typedef {{state?: "queued" | "waiting" | "prefill" | "decode" | "stopping" | "done" | "stopped" | "error",
 *   prompt?: number, tokens?: number, ttft_ms?: number | null, itl_p50?: number | null, computed?: number,
 *   target?: number, cached?: number, reason?: string | null, error?: string | null}} AnswerFigures */

/** @typedef {{t: number, requests: [request: number, about: Partial<RequestRecord>][], words?: [request: number,
 *   title: string, text: string][], tenants?: [request: number, tenant: string][], blocks?: BlockRow[],
 *   blocks_used?: number, states?: StateRow[], stats?: Stats | null, burst?: BurstFigures | null,
 *   absent?: Record<string, string>, load?: Load}} RecordedSnapshot */

/** @typedef {{t: number, steps: any[], tokens: any[], requests: ([request: number, event: "submitted" | "scheduled"
 *   | "first" | "finished", t: number, about: Partial<RequestRecord>])[], knobs: [t: number, step: number,
 *   changes: Record<string, [old: any, new: any]>][], blocks: BlockRow[], states?: StateRow[],
 *   titles?: [request: number, title: string][], texts?: [request: number, index: number, text: string][],
 *   tenants?: [request: number, tenant: string][], stats?: Stats | null, burst?: BurstFigures | null, story?: Said
 *   | null, pair?: Pair, demo?: DemoCaption | null, loads?: Load[], absent?: Record<string, string>}} Frame */
