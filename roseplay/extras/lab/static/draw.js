/* Drawing functions that the views of a result share. */

/** @import { Area } from "page/shared/chart/axes.js" */

/** How an arm is drawn: A in ink, solid; B in rose, dashed. */
export const lookOf = (arm, T) => (arm === "A" ? { color: T.ink, dash: [] } : { color: T.rose, dash: [5, 3] });

/** A key handler that moves the reading point by some px, within the area. */
export const readBeside = (by) => (point, area) => ({
  x: Math.max(area.x0, Math.min(area.x1, point ? point.x + by : (area.x0 + area.x1) / 2)),
  y: area.y1,
});

/** A key handler that moves the reading point to the next of some marks, from the last one to the first.
 * @param {(area: Area) => {x: number, y: number}[]} marks
 * @param {(mark: any) => any} of what a mark is of
 * @param {1 | -1} by */
export const nextMark = (marks, of, by) => (point, area) => {
  const all = marks(area).sort((a, b) => a.x - b.x || a.y - b.y);
  if (!all.length) return null;
  const at = point && point.mark ? all.findIndex((mark) => of(mark) === point.mark) : by > 0 ? -1 : 0;
  const next = all[(at + by + all.length) % all.length];
  return { x: next.x, y: next.y, mark: of(next) };
};

/** Draw a line through points, in an arm's colour. `strong`: the overall line, otherwise one of several repeats. */
export const stroke = (pen, points, { color, dash }, strong) =>
  strong ? pen.path(points, color, 1.75, dash) : pen.path(points, color, 1, [], 0.3);

/** What tells a server from others: its host, or what follows if all have the same. @param {string[]} all addresses */
export function serverName(address, all) {
  if (![address, ...all].every((each) => URL.canParse(each))) return address;
  const { host, hostname, pathname } = new URL(address),
    shared = all.every((each) => new URL(each).hostname === hostname);
  return shared ? host.slice(hostname.length) + pathname : host;
}

export const ring = (pen, x, y, color, T) => pen.circle(x, y, 3.5, T.surface, color);

export const ascending = (values) => Float64Array.from(values.filter((value) => value !== null)).sort();
