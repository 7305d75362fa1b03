/* The number of running (area) and waiting (dotted) requests in each step, or as reported by another server, along the
 * top of the step timeline. `slots` are those of the steps in view, oldest first. */
import { store } from "../shared/store.js";
import { fade } from "../shared/theme.js";
import { time } from "../shared/time.js";
import { timeline } from "./timeline.js";

const LEAST = 8, IDLE_PX = 20;

export function drawOverview(g, [top, bottom], slots) {
  const { steps } = store, { T } = timeline, x = (t) => timeline.x(time.x(t));
  const pointOf = (slot) => [x(steps.t0[slot]), x(steps.t1[slot]), steps.running[slot], steps.waiting[slot]];
  const points = store.absent.steps ? loadPoints() : slots.map(pointOf);
  if (!points.length) return;
  const most = points.reduce((max, [, , ...counts]) => Math.max(max, ...counts), LEAST);
  const y = (v) => bottom - (v / most) * (bottom - top);
  const path = (k) => {
    g.beginPath();
    let lastX = points[0][0];
    g.moveTo(lastX, y(0));
    for (const point of points) {
      if (point[0] - lastX > IDLE_PX) { // idle between
        g.lineTo(lastX, y(0));
        g.lineTo(point[0], y(0));
      }
      g.lineTo(point[0], y(point[k]));
      g.lineTo(lastX = point[1], y(point[k]));
    }
    g.lineTo(lastX, y(0));
  };
  path(2);
  g.fillStyle = fade(T.decode, 0.38);
  g.fill();
  g.lineWidth = 1;
  g.strokeStyle = T.ink3;
  g.stroke();
  path(3);
  g.strokeStyle = T.ink;
  g.setLineDash([2, 2]);
  g.stroke();
  g.setLineDash([]);
}

/* Another server's reports: each is valid until the next, of which one that knows nothing is left out. */
function loadPoints() {
  const { x0, x1 } = timeline.window, { loads } = store;
  const ends = loads.map((_, i) => (i + 1 < loads.length ? time.x(loads[i + 1].t) : x1));
  return loads.map(({ t, running, waiting }, i) => [time.x(t), ends[i], running, waiting])
    .filter(([from, to, ...counts]) => to >= x0 && from <= x1 && !counts.includes(null))
    .map(([from, to, running, waiting]) => [timeline.x(from), timeline.x(to), running, waiting]);
}
