/* The list of demos: in the timeline until the first prompt, later in a popover. */
import { make, makeButton } from "../shared/dom.js";
import { emit, on } from "../shared/events.js";
import { given } from "../shared/given.js";
import { popover } from "../shared/popover.js";
import { demos } from "./demos.js";

const COUNTS = ["No", "One", "Two", "Three", "Four", "Five", "Six"];

/** Its title, and what it is. */
export function heading() {
  const title = `${COUNTS[demos.list.length] || demos.list.length} things to see`;
  const words = "live on this engine; your settings are restored afterwards";
  return [title, words];
}

function rows(chosen = () => {}) {
  return demos.list.map(({ name, title, shows, seconds, absent = "" }, i) => {
    const takes = absent ? "not here" : seconds ? `${seconds} s` : "";
    const about = [make("b", "", title), make("span", "", absent || shows), make("small", "", takes)];
    const button = makeButton(make("i", "", String(i + 1)), {
      className: absent ? "rp-not-here" : "",
      onclick: () => {
        chosen();
        demos.start(name);
      },
    });
    button.append(...about);
    return make("li", "", button);
  });
}

/* A recording of the first demo, for when the engine is busy or too slow to watch. */
function recorded(chosen = () => {}) {
  const onclick = () => {
    chosen();
    emit("recorded demo");
  };
  return given.recordedDemo
    ? [makeButton("Watch a recording of the first one", { className: "rp-recorded", onclick })]
    : [];
}

/** The list, for the timeline. */
export function demoList() {
  const [title, words] = heading();
  const head = make("h4", "", title, make("span", "", words)), list = make("ol", "", ...rows());
  on("demos offered", () => list.replaceChildren(...rows()));
  return make("div", "rp-demos", head, list, ...recorded());
}

/**
 * Open the list beside a button.
 * @param {HTMLElement} button
 */
export function openDemoList(button) {
  const { left, bottom } = button.getBoundingClientRect();
  const fill = (body) => body.append(make("ol", "rp-demo-menu", ...rows(popover.close)), ...recorded(popover.close));
  popover.open({ name: "demos", title: heading()[0], x: left, y: bottom, fill });
}
