/* Made-up deltas in the server's format. */
import { given } from "./page.js";
import { apply } from "../../../roseplay/play/static/shared/reduce.js";

const EMPTY = { entries: [], preempted: [], copied: [], replayed: null, limit: null };
const INFO = { num_blocks: 9, block_size: 16, max_model_len: 64, model: "m" };

/** The row of a step with these values. */
export const stepRow = (values) => given.columns.steps.map((name) => values[name] ?? (name in EMPTY ? EMPTY[name] : 0));

/** The same for a step with these parts: [request, prompt, decode, computed, target, cached, shared]. */
export function step(step_id, t0, t1, entries = [], preempted = []) {
  const sum = (place) => entries.reduce((total, part) => total + part[place], 0);
  const counts = { prompt_tokens: sum(1), decode_tokens: sum(2), running: entries.length, blocks_free: 4 };
  return stepRow({ step_id, t0, t1, ...counts, blocks_cached: 1, blocks_active: 2, entries, preempted });
}

export const submitted = (rid, t, more = {}) => [rid, "submitted", t, { prompt_tokens: 8, ...more }];

/** Apply frames to the current store. */
export function take(frames, { boot = "one", now = 1000 } = {}) {
  apply(/** @type {any} */ ({ boot_id: boot, next: 7, now, reset: false, frames }));
}

/**
 * Empty the store; `of` contains additional fields of the snapshot.
 * @param {{boot?: string, now?: number, [name: string]: any}} [of]
 */
export function startAnew({ boot = "one", now = 1000, ...snapshot } = {}) {
  const whole = { info: INFO, knobs: { max_batch_size: 4 }, ...snapshot };
  apply(/** @type {any} */ ({ boot_id: boot, next: 7, now, reset: true, frames: [], snapshot: whole }));
}

/** Two requests: the first gets two tokens, the second is preempted once. */
export function tellStory() {
  startAnew();
  take([{
    requests: [submitted(1, 0, { lane: 2 }), submitted(2, 1, { burst: 5 })],
    steps: [step(1, 2, 12, [[1, 8, 0, 8, 8, 0, 0], [2, 4, 0, 4, 8, 0, 0]])],
  }]);
  take([{
    steps: [step(2, 12, 20, [[1, 0, 1, 8, 8, 0, 0]], [2]), step(3, 20, 30, [[2, 8, 0, 8, 8, 0, 0]])],
    tokens: [[1, 12, null, 1], [1, 20, 8.0, 2]],
    requests: [
      [1, "first", 12, { ttft_ms: 12.0 }],
      [1, "finished", 20, { reason: "stop", tokens: 2, e2e_ms: 20.0 }],
    ],
    knobs: [[15, 2, { max_batch_size: [4, 2] }]],
  }]);
}

/** Reproducible random numbers from 0 to below 1. */
export function randomNumbers(seed) {
  return () => {
    seed = (seed * 1664525 + 1013904223) % 2 ** 32;
    return seed / 2 ** 32;
  };
}
