/* A request's token in a step. */
import { store } from "./store.js";

/** A token is slow if the gap before it is longer than this many times the usual one. */
export const SLOW = 1.5;

/** The first, if there are several: when it came and the gap before it (NaN: the answer's first); undefined: none. */
export function tokenOf(rid, step) {
  const { tokens } = store;
  for (let i = tokens.lowerBound(tokens.step_id, step); i < tokens.end; i++) {
    const slot = i & tokens.mask;
    if (tokens.step_id[slot] !== step) break;
    if (tokens.request_id[slot] === rid) return { t: tokens.t[slot], itl: tokens.itl_ms[slot] };
  }
}
