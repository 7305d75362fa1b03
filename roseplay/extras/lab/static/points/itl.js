/* Inter-token latency of a sweep or a search. */
import { mountCurve } from "./curve.js";

export const mount = (element) =>
  mountCurve(element, { figure: "itl_p99_ms", limit: "itl_ms", name: "Inter-token latency", percentile: "p99" });
