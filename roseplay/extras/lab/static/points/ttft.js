/* Time to first token of a sweep or a search. */
import { mountCurve } from "./curve.js";

export const mount = (element) =>
  mountCurve(element, { figure: "ttft_p95_ms", limit: "ttft_ms", name: "Time to first token", percentile: "p95" });
