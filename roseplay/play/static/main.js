/* The page's entry: modules that no part of the page loads by itself, the connection, and a handle for the console and
 * for tests. */
import { blocks } from "./shared/blocks.js";
import { emit, on } from "./shared/events.js";
import { given } from "./shared/given.js";
import { panels } from "./shared/panel.js";
import { pointing } from "./shared/pointing.js";
import { poll } from "./shared/poll.js";
import { popover } from "./shared/popover.js";
import { apply } from "./shared/reduce.js";
import { store } from "./shared/store.js";
import { tab } from "./shared/tab.js";
import { palette } from "./shared/theme.js";
import { clock, time } from "./shared/time.js";
import { stamps } from "./lanes/lanes.js";
import { knobMarks } from "./live/knobmarks.js";
import { stepSpan } from "./live/span.js";
import { view } from "./live/view.js";
import { replay } from "./replay/replay.js";

import "./live/cachepopover.js";
import "./live/knobs.js";
import "./live/whypopover.js";
import "./replay/bar.js";
import "./start/start.js";
import "./traces/traces.js";

/** Show in `element` whether the page is live, and begin: with the server's engine, or with the recording it was
 * started for.
 * @param {HTMLElement} element the header's brand */
export function mount(element) {
  document.getElementById("rp-opening")?.remove();
  poll.start(element.querySelector(".rp-live"), stamps);
  if (given.recording) replay.served();
}

/** For the console, tests and measurements; the page itself does not use it. Tabs of extensions add theirs. */
window.Rose = {
  apply,
  blocks,
  clock,
  emit,
  knobMarks,
  on,
  palette,
  panels,
  pointing,
  poll,
  popover,
  replay,
  stepSpan,
  store,
  tab,
  time,
  view,
};
