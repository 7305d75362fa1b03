/* The list of demos: in the page until the first prompt, and in a popover. */
import { make, makeButton, write } from "../shared/dom.js";
import { emit, on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { given } from "../shared/given.js";
import { popover } from "../shared/popover.js";
import { store } from "../shared/store.js";
import { demos } from "./demos.js";

const COUNTS = "No One Two Three Four Five Six Seven Eight".split(" ");

const offered = () => demos.list.filter((one) => !one.absent);
const absent = () => demos.list.filter((one) => one.absent);

/** Its title. */
function heading() {
  const count = offered().length;
  return `${COUNTS[count] || count} things to see`;
}

function rows(list, chosen = () => {}) {
  return list.map(({ name, title, shows, seconds, absent = "" }, i) => {
    const takes = absent ? "not here" : seconds ? format.minutes(seconds) : "";
    const about = [make("b", "", title), make("span", "", absent || shows), make("small", "", takes)];
    const onclick = () => {
      chosen();
      demos.start(name);
    };
    const values = { className: absent ? "rp-not-here" : "", onclick };
    return make("li", "", makeButton(make("i", "", String(i + 1)), values, ...about));
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

/**
 * Fill the page's list with those that can be shown here, once that is known.
 * @param {HTMLElement} element
 */
export function mount(element) {
  const words = "live on this engine; your settings are restored afterwards";
  const title = make("b"), head = make("h4", "", title, make("span", "", words)), list = make("ol");
  const box = make("div", "rp-demos", head, list, ...recorded());
  const fill = () => {
    if (!store.bootId) return;
    write(title, heading());
    list.replaceChildren(...rows(offered()));
    element.append(box);
  };
  on("demos offered", fill);
  fill();
}

/**
 * Open the list of all beside a button, those that cannot be shown here at the end, with the reasons.
 * @param {HTMLElement} button
 */
export function openDemoList(button) {
  const { left, bottom } = button.getBoundingClientRect();
  const all = rows([...offered(), ...absent()], popover.close);
  const fill = () => [make("ol", "rp-demo-menu", ...all), ...recorded(popover.close)];
  popover.open({ name: "demos", title: heading(), x: left, y: bottom, fill });
}
