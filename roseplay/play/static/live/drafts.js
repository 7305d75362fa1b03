/* Tokens of drafts that were right, in the step timeline. They came together with the token before them, so they are
 * small marks that are stacked on it, above and below in turn. */
import { store } from "../shared/store.js";
import { time } from "../shared/time.js";
import { rows, timeline } from "./timeline.js";

const HIGH = 1.5, WIDE = 3, LEAST_STEP = 4; // px

export const hasDrafts = () => store.steps.draft_tokens.some((count) => count > 0);

/** @param {CanvasRenderingContext2D} g
 * @param {number} slot the step's
 * @param {number} thin the height of a decode
 * @param {(rid: number) => number} dim a request's opacity */
export function drawAccepted(g, slot, thin, dim) {
  const { steps, tokens } = store, step = steps.step_id[slot], x1 = timeline.x(time.x(steps.t1[slot]));
  if (!steps.accepted_tokens[slot] || x1 - timeline.x(time.x(steps.t0[slot])) < LEAST_STEP) return;
  const most = 2 * Math.floor((timeline.rowHeight - thin) / 2 / HIGH), stacked = new Map();
  for (let i = tokens.lowerBound(tokens.step_id, step); i < tokens.end; i++) {
    const at = i & tokens.mask, rid = tokens.request_id[at], row = rows.rowOf(rid);
    if (tokens.step_id[at] !== step) break;
    if (tokens.itl_ms[at] !== 0 || row < 0 || row >= timeline.shown) continue;
    const n = stacked.get(rid) || 0, away = thin / 2 + (n >> 1) * HIGH;
    stacked.set(rid, n + 1);
    if (n >= most) continue;
    g.globalAlpha = dim(rid);
    g.fillStyle = rows.color(rid);
    g.fillRect(x1 - WIDE - 0.7, timeline.y(row) + (n & 1 ? away + 0.5 : -away - HIGH), WIDE, HIGH - 0.5);
  }
}
