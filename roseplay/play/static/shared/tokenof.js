/* A request's token in a step. */
import { store } from "./store.js";

/**
 * The first, if there are several: when it came, the gap before it (NaN: the answer's first), the one that was usual
 * then (NaN: unknown) and, if it was late, why; undefined: there is none.
 */
export function tokenOf(rid, step) {
  const { tokens } = store;
  for (let i = tokens.lowerBound(tokens.step_id, step); i < tokens.end; i++) {
    const slot = i & tokens.mask;
    if (tokens.step_id[slot] !== step) break;
    if (tokens.request_id[slot] === rid) {
      const { t, itl_ms, usual_ms, cause } = tokens;
      return { t: t[slot], itl: itl_ms[slot], usual: usual_ms[slot], cause: cause[slot] };
    }
  }
}
