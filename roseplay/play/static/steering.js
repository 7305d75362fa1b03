/* Rose.steering: wheel, drag and keys on a canvas with a time axis. Zooms and pans Rose.view, so every time chart goes along. */
"use strict";
(function (Rose) {
  const ZOOM = 1.25, LEAST_MS = 20, MOST_MS = 60000, PAN = 0.15, DRAG_PX = 4;

  /* area: window() -> the window shown, left and right margins in px, at(x, y) -> {rid, step} or null, stepAt(x) -> step or null. */
  Rose.steering = function (canvas, area) {
    let drag = null;
    const plot = () => canvas.clientWidth - area.left - area.right;

    // Where the page itself scrolls, the wheel is the page's until somebody has clicked here.
    const scrolls = () => document.documentElement.scrollHeight > innerHeight + 1;

    function zoom(factor, share) {
      const { x0, x1 } = area.window(), span = Math.max(LEAST_MS, Math.min(MOST_MS, (x1 - x0) * factor));
      const middle = x0 + (x1 - x0) * share;
      Rose.view.set(middle - span * share, middle + span * (1 - share));
    }

    function pan(ms) {
      const { x0, x1 } = area.window();
      Rose.view.set(x0 + ms, x1 + ms);
    }

    canvas.addEventListener("wheel", (event) => {
      if (!area.window() || event.ctrlKey || (scrolls() && document.activeElement !== canvas)) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(((area.window().x1 - area.window().x0) / plot()) * event.deltaX);
      else zoom(event.deltaY > 0 ? ZOOM : 1 / ZOOM, Math.max(0, Math.min(1, (event.offsetX - area.left) / plot())));
    }, { passive: false });

    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !area.window()) return;
      drag = { x: event.clientX, y: event.clientY, window: area.window(), moved: false };
      canvas.setPointerCapture(event.pointerId);
    });

    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return point(event);
      const px = event.clientX - drag.x;
      if (!drag.moved && Math.abs(px) < DRAG_PX) return;
      drag.moved = true;
      canvas.classList.add("rp-dragging");
      const { x0, x1 } = drag.window, ms = (px / plot()) * (x1 - x0);
      Rose.view.set(x0 - ms, x1 - ms);
    });

    function end(event) {
      canvas.classList.remove("rp-dragging");
      const clicked = drag && !drag.moved && event.type === "pointerup";
      drag = null;
      if (!clicked) return;
      const what = area.at(event.offsetX, event.offsetY);
      if (what && what.step !== null) Rose.emit("select", what); // beside it nothing is deselected
    }
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("dblclick", Rose.view.clear);

    function point(event) {
      const what = area.at(event.offsetX, event.offsetY);
      Rose.emit("hover", what ? what.rid : null);
      const step = area.stepAt(event.offsetX);
      if (step !== Rose.pointed) Rose.emit("step", step);
    }
    canvas.addEventListener("pointerleave", () => {
      Rose.emit("hover", null);
      Rose.emit("step", null);
    });

    canvas.addEventListener("keydown", (event) => {
      if (!area.window() || event.ctrlKey || event.metaKey || event.altKey) return;
      const span = area.window().x1 - area.window().x0;
      const acts = {
        ArrowLeft: () => event.shiftKey && pan(-span * PAN), ArrowRight: () => event.shiftKey && pan(span * PAN),
        "+": () => zoom(1 / ZOOM, 0.5), "=": () => zoom(1 / ZOOM, 0.5), "-": () => zoom(ZOOM, 0.5),
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      event.stopPropagation();
      acts[event.key]();
    });
  };
})(window.Rose);
