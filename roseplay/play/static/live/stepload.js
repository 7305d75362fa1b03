/* How full the batch was in each step, and how long host and device worked on it: other figures of the steps that the
 * chart of their tokens shows. */
import { format } from "../shared/format.js";
import { legendBox, legendEntry, legendLine } from "../shared/legend.js";
import { slowedIn } from "../shared/past.js";
import { store } from "../shared/store.js";
import { calmAxis } from "./axes.js";
import { areaTrace } from "../shared/chart/shapes.js";
import { collectBars, heightOf, lasting, limit, limitLabel, limitLine, outline } from "./stepbars.js";

const LEAST = 8, FAR = 4; // a limit that is this many times as high as all bars does not stretch the axis
let summary = "";

const top = (bars) => bars.reduce((max, bar) => Math.max(max, heightOf(bar)), 0);

// ---- the batch --------------------------------------------------------------------------------------------
const batchAxis = calmAxis(3);

function drawBatch(frame) {
  const { window, T } = frame, { steps } = store, limited = limit("max_batch_size", window);
  const bars = collectBars(frame, (i) => ({ low: steps.running[i], high: 0 }));
  const most = top(bars), limits = lasting(limited).filter((v) => v <= FAR * Math.max(LEAST, most));
  const yaxis = batchAxis(Math.max(LEAST, most, ...limits), window.live);
  const layout = { yaxis, shapes: [], annotations: [] };
  limitLabel(layout, limited, "batch", yaxis, frame);
  summary = bars.length ? `At most ${most} requests ran at once; max batch ${limited.now}.` : "No steps.";
  const area = areaTrace(...outline(bars, heightOf, 0, frame), T.decode);
  return { traces: [area, limitLine(limited, T)], layout, empty: !bars.length };
}

// ---- host and device --------------------------------------------------------------------------------------
const timeAxis = calmAxis(3);

function drawTime(frame) {
  const { window, T } = frame, { steps } = store;
  const all = collectBars(frame, (i) => ({ low: steps.device_ms[i] || 0, high: steps.host_ms[i] || 0 }));
  const bars = all.filter(heightOf); // older recordings have none
  const most = top(bars), yaxis = timeAxis(Math.max(1, most), window.live);
  const layout = { yaxis, shapes: [], annotations: [] };
  const longest = bars.find((bar) => heightOf(bar) === most);
  const parts = longest && `host ${format.ms(longest.high)}, device ${format.ms(longest.low)}`;
  summary = longest ? `The longest step took ${format.ms(most)} ms${slowedIn(window)}: ${parts}.` : "No steps.";
  const traces = [
    areaTrace(...outline(bars, heightOf, 0, frame), T.prompt),
    areaTrace(...outline(bars, (bar) => bar.low, 0, frame), T.decode),
  ];
  return { traces, layout, empty: !bars.length };
}

const describe = () => summary;

export const LOADS = {
  batch: {
    title: "Batch per step",
    sub: "requests",
    draw: drawBatch,
    describe,
    legend: [
      legendEntry(legendBox("decode"), "running"),
      legendEntry(legendLine("rose", 1.25, "4 3"), "max batch", "rp-hand rp-roomy"),
    ],
  },
  ms: {
    title: "Time per step",
    sub: "ms",
    draw: drawTime,
    describe,
    legend: [legendEntry(legendBox("prompt"), "host"), legendEntry(legendBox("decode"), "device")],
  },
};
