/* Drawing functions that the views of a result share. */

/** How an arm is drawn: A in ink, solid; B in rose, dashed. */
export const lookOf = (arm, T) => (arm === "A" ? { color: T.ink, dash: [] } : { color: T.rose, dash: [5, 3] });

/** Returns a key handler that moves the reading point by some px, within the area. */
export const readBeside = (area, point, by) => ({
  x: Math.max(area.x0, Math.min(area.x1, point ? point.x + by : (area.x0 + area.x1) / 2)),
  y: area.y1,
});

/** Draw a line through points, in an arm's colour. `strong`: the overall line, otherwise one of several repeats. */
export function stroke(pen, points, { color, dash }, strong) {
  const { g } = pen;
  g.save();
  g.strokeStyle = color;
  g.lineWidth = strong ? 1.75 : 1;
  g.globalAlpha = strong ? 1 : 0.3;
  g.lineJoin = "round";
  g.setLineDash(strong ? dash : []);
  g.beginPath();
  points.forEach(([x, y], i) => (i ? g.lineTo(x, y) : g.moveTo(x, y)));
  g.stroke();
  g.restore();
}

/** Draw a ring around the point that is being read. */
export function ring({ g }, x, y, color, T) {
  g.fillStyle = T.surface;
  g.strokeStyle = color;
  g.lineWidth = 1.5;
  g.beginPath();
  g.arc(x, y, 3.5, 0, 2 * Math.PI);
  g.fill();
  g.stroke();
}

export const ascending = (values) => Float64Array.from(values.filter((value) => value !== null)).sort();
