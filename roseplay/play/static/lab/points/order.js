/* What the server is asked for: a sweep or a search under the settings that the engine has now. */
import { store } from "../../shared/store.js";
import { numbers, trafficOrder } from "../plan.js";
import { lab } from "../state.js";

/** @import { Asked } from "../state.js" */

/** The body of a run; throws an Error that says which number is missing. */
export function pointsOrder() {
  const kind = /** @type {"sweep" | "find"} */ (lab.mode), asked = lab.asked[kind];
  const { seed, repeats, ...params } = numbers();
  for (const [name, value] of Object.entries(asked)) {
    if (name !== "setting" && typeof value !== "number") throw new Error(`“${name}” is empty: give a number.`);
  }
  const { slow_motion: _refused, ...knobs } = store.knobs, { common } = lab.scenario;
  const a = { knobs, config: (common && common.config) || {} };
  const order = { scenario: lab.scenario.name, a, seed, repeats, limits: lab.limits, name: null };
  const traffic = trafficOrder(paramsOf(kind, asked, params)), timed = asked.setting === "rate_per_s";
  if (kind === "sweep") Object.assign(order, { max_spread_pct: lab.maxSpread });
  return { ...order, ...traffic, ...(timed ? { length: 1 } : {}), [kind]: question(kind, asked) };
}

/* A sweep of the rate has its own number of requests at each rate. */
function paramsOf(kind, { setting }, params) {
  if (kind !== "sweep" || setting !== "rate_per_s") return params;
  const { num_requests: _count, rate_per_s: _rate, ...rest } = params;
  return rest;
}

/** @param {"sweep" | "find"} kind @param {Asked} asked */
function question(kind, { setting, from, to, points, seconds }) {
  if (kind === "find") {
    return { setting, from, to, itl_p99_ms: lab.limits.itl_ms, ttft_p95_ms: lab.limits.ttft_ms };
  }
  return { setting, from, to, points, seconds: setting === "rate_per_s" && !lab.traffic ? seconds : null };
}
