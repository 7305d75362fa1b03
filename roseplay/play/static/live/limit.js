/* What limits the engine: what stopped the next admission or token in most steps of a stretch of time. The server
 * reports it for each step. */
import { store } from "../shared/store.js";
import { time } from "../shared/time.js";

const LEAST_SHARE = 0.6;

/**
 * The most frequent limit and its share of the steps; null if none has a majority.
 * @param {{x0: number, x1: number}} window
 * @returns {{name: string, share: number} | null}
 */
export function limitIn({ x0, x1 }) {
  const { steps } = store, counts = new Map();
  let total = 0;
  for (let i = steps.end - 1; i >= steps.first; i--) {
    const slot = i & steps.mask, x = time.x(steps.t1[slot]), name = steps.limit[slot];
    if (x < x0) break;
    if (x > x1 || !name) continue;
    counts.set(name, (counts.get(name) || 0) + 1);
    total++;
  }
  const [name, most] = [...counts].reduce((best, one) => (one[1] > best[1] ? one : best), ["", 0]);
  return total && most / total >= LEAST_SHARE ? { name, share: most / total } : null;
}
