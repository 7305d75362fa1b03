/* Rose.overview: how many requests ran (area) and waited (dotted) in each step, along the top of the step timeline.
 * eachStep(fn(slot)) goes through the steps in view; `band` is [top, bottom] in px. */
"use strict";
(function (Rose) {
  const LEAST = 8, IDLE_PX = 20;

  Rose.overview = function (g, state, [top, bottom], eachStep) {
    const { steps } = Rose.store, { T } = state, points = [];
    let most = LEAST;
    eachStep((slot) => {
      points.push([state.x(Rose.time.x(steps.t0[slot])), state.x(Rose.time.x(steps.t1[slot])), steps.running[slot], steps.waiting[slot]]);
      most = Math.max(most, steps.running[slot], steps.waiting[slot]);
    });
    if (!points.length) return;
    const y = (v) => bottom - (v / most) * (bottom - top);
    const path = (k) => {
      g.beginPath();
      let lastX = points[0][0];
      g.moveTo(lastX, y(0));
      for (const point of points) {
        if (point[0] - lastX > IDLE_PX) g.lineTo(lastX, y(0)), g.lineTo(point[0], y(0)); // idle between
        g.lineTo(point[0], y(point[k]));
        g.lineTo((lastX = point[1]), y(point[k]));
      }
      g.lineTo(lastX, y(0));
    };
    path(2);
    g.fillStyle = Rose.fade(T.decode, 0.38);
    g.fill();
    g.lineWidth = 1;
    g.strokeStyle = T.ink3;
    g.stroke();
    path(3);
    g.strokeStyle = T.ink;
    g.setLineDash([2, 2]);
    g.stroke();
    g.setLineDash([]);
  };
})(window.Rose);
