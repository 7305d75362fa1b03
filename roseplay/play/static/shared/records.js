/* The columns of rows in frames and recordings, and the types of records in them: written by `python docs/records.py`
 * from roseplay/engine/records.py. */
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
  graph: Array, // whether it was replayed; null without CUDA graphs or recordings
  t0: F64, // when it began (time)
  t1: F64, // when it ended (time)
  device_ms: F64, // time on the device (ms)
  host_ms: F64, // time on the host (ms)
  block_copies: I32, // copied because a request wrote to them (blocks)
  limit: Array, // what has to change for it to be faster, see recording/step_limit.py
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
};

/**
 * What is known of one request. Times are null for what has not happened.
 * @typedef {object} RequestRecord
 * @property {"lane" | "burst" | "steady" | "own" | "api"} kind what sent it: traffic of a tab, or a program (api)
 * @property {number | null} lane number of its lane in the tab, from 1
 * @property {number | null} burst number of its burst
 * @property {number | null} tenant number of its tenant
 * @property {number} priority its priority
 * @property {boolean} thinking its prompt ends where the model begins to think
 * @property {number} computed of its prompt, in its blocks (tokens)
 * @property {number} target of its prompt, that it needs (tokens)
 * @property {number} cached of those in its blocks, attached from earlier steps (tokens)
 * @property {number} shared of those in its blocks, attached from requests of the same step (tokens)
 * @property {number} prompt_tokens in its prompt (tokens)
 * @property {number | null} arrived when it was due; a busy engine may take it later (time)
 * @property {number | null} submitted when it was submitted (time)
 * @property {number | null} scheduled when a step first worked on it (time)
 * @property {number | null} first when its first token came (time)
 * @property {number | null} last when its newest token came (time)
 * @property {number | null} finished when it ended (time)
 * @property {number | null} queue_ms from its submission until it was scheduled (ms)
 * @property {number | null} sent_ms until its last byte was sent to another server (ms)
 * @property {number | null} ttft_ms from its submission until its first token (ms)
 * @property {number[] | null} ttft_parts of this: in line, for blocks, for budget, computing (ms)
 * @property {number | null} e2e_ms from its submission until it ended (ms)
 * @property {number | null} itl_p50 the median gap between its tokens (ms)
 * @property {number | null} itl_max the longest gap between its tokens (ms)
 * @property {number} tokens generated so far (tokens)
 * @property {number} preemptions how often it lost its blocks
 * @property {Miss | null} miss why no more of its prompt was cached, from its first token on
 * @property {string | null} reason why it ended
 * @property {string | null} error the error that ended it
 */

/**
 * Why part of a request's prompt was not cached, as far as all tabs may know; see ``core.cache_miss.Miss``.
 * @typedef {object} Miss
 * @property {string} reason one of MissReason, see core/cache_miss.py
 * @property {number} found that were there (tokens)
 * @property {number | null} position of the first token that differs, from 0; null if unknown
 * @property {number | null} request the one that it is compared with
 * @property {number | null} step number of the step in which it was lost
 */

/**
 * The load that a server reports in its metrics; ``None`` for what they do not include.
 * @typedef {object} LoadFigures
 * @property {number | null} running running, those of other clients included (requests)
 * @property {number | null} waiting waiting, those of other clients included (requests)
 * @property {number | null} kv_usage share of the KV cache that requests hold, 0 to 1
 * @property {number | null} prefix_queries of prompts, looked up in the prefix cache since the start (tokens)
 * @property {number | null} prefix_hits of those, found there (tokens)
 * @property {number | null} preemptions since the start
 */

/**
 * Properties of an engine, known once its model is loaded.
 * @typedef {object} Info
 * @property {string} model
 * @property {string} architecture
 * @property {string} device
 * @property {string} dtype
 * @property {string} attention
 * @property {number} num_parameters
 * @property {number} weight_bytes
 * @property {number} vocab_size
 * @property {number} block_size
 * @property {number} num_blocks
 * @property {number} max_model_len
 * @property {number} kv_bytes_per_token
 * @property {number} threads
 * @property {number} [cuda_graphs]
 * @property {string | null} [no_cuda_graphs]
 * @property {number | null} [max_step_tokens]
 * @property {Choice[]} [choices]
 * @property {number} [state_slots]
 * @property {number} [state_snapshots]
 * @property {number} [state_bytes]
 * @property {number} [host_blocks]
 * @property {number} [decode_s]
 * @property {number} [prompt_token_s]
 * @property {string | null} [server]
 * @property {string | null} [simulated]
 * @property {string | null} [evidence]
 * @property {Record<string, any>} [sampling_defaults]
 */

/**
 * How one part of a step is computed on this machine.
 * @typedef {object} Choice
 * @property {string} part
 * @property {string} chosen
 * @property {string} [why]
 * @property {string | null} [slow]
 */

/** A request of which nothing is known. @returns {RequestRecord} */
export const newRequest = () => ({
  kind: "api",
  lane: null,
  burst: null,
  tenant: null,
  priority: 0,
  thinking: false,
  computed: 0,
  target: 0,
  cached: 0,
  shared: 0,
  prompt_tokens: 0,
  arrived: null,
  submitted: null,
  scheduled: null,
  first: null,
  last: null,
  finished: null,
  queue_ms: null,
  sent_ms: null,
  ttft_ms: null,
  ttft_parts: null,
  e2e_ms: null,
  itl_p50: null,
  itl_max: null,
  tokens: 0,
  preemptions: 0,
  miss: null,
  reason: null,
  error: null,
});
