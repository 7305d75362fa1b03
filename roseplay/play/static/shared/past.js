/* The settings at earlier times, from the marks of their changes, and what they mean for times measured then. */
import { format } from "./format.js";
import { store } from "./store.js";
import { time } from "./time.js";

const same = (t) => t;

/** A setting at a time of the engine or, with the clock `time.x`, of the views. */
export function settingAt(name, t, clock = same) {
  const next = store.marks.find((mark) => clock(mark.t) > t && name in mark.changes);
  return next ? next.changes[name][0] : store.knobs[name];
}

/** The factors of slow motion from one time to another, ascending. */
export function factors(from, to = from, clock = same) {
  const between = store.marks.filter(({ t, changes }) => clock(t) > from && clock(t) < to && "slow_motion" in changes);
  const all = [settingAt("slow_motion", from, clock) ?? 1, ...between.map(({ changes }) => changes.slow_motion[1])];
  return [...new Set(all)].sort((a, b) => a - b);
}

/** What follows times that were measured from one time of the engine to another, see `format.slowed`. */
export const slowed = (from, to = from) => format.slowed(factors(from, to));

/** The same for all that a window of time shows. @param {{x0: number, x1: number}} window */
export function slowedIn({ x0, x1 }) {
  const { steps } = store, begun = time.x(steps.t1[steps.first & steps.mask]);
  return steps.end > steps.first ? format.slowed(factors(Math.max(x0, begun), x1, time.x)) : "";
}

/** The same for the first tokens of requests. @param {import("./store.js").Request[]} requests */
export const slowedFirst = (requests) =>
  requests.length === 0
    ? ""
    : slowed(Math.min(...requests.map((one) => one.submitted)), Math.max(...requests.map((one) => one.first)));
