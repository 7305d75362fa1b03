/* The list of demos: in the page until the first prompt, and in a popover. */
import { make, makeButton } from "../shared/dom.js";
import { emit, on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { given } from "../shared/given.js";
import { popover } from "../shared/popover.js";
import { store } from "../shared/store.js";
import { demos } from "./demos.js";

const offered = () => demos.list.filter((one) => !one.absent);
const absent = () => demos.list.filter((one) => one.absent);
const HEADING = "Things to see";

function rows(list) {
  return list.map(({ name, title, shows, seconds, absent = "" }, i) => {
    const takes = seconds ? format.minutes(seconds) : "";
    const about = [make("b", "", title), make("span", "", absent || shows), make("small", "", takes)];
    const onclick = () => {
      popover.close();
      demos.start(name);
    };
    const values = { className: absent ? "rp-not-here" : "", onclick };
    return make("li", "", makeButton(make("i", "", String(i + 1)), values, ...about));
  });
}

/* A recording of the first demo, for when the engine is busy or too slow to watch. */
function recordingButton() {
  const onclick = () => {
    popover.close();
    emit("recorded demo");
  };
  return given.recordedDemo
    ? [makeButton("Watch a recording of the first one", { className: "rp-recorded", onclick })]
    : [];
}

/* Counts those that cannot be shown here, and adds them to the list with the reasons. */
function elsewhere(list) {
  const words = `${format.many(absent().length, "demo")} cannot be played here: why?`;
  const onclick = ({ currentTarget }) => {
    list.replaceChildren(...rows([...offered(), ...absent()]));
    currentTarget.remove();
  };
  return absent().length ? [makeButton(words, { className: "rp-recorded", "aria-expanded": "false", onclick })] : [];
}

/** Fill the page's list with those that can be shown here, once that is known. @param {HTMLElement} element */
export function mount(element) {
  const words = "live on this engine; your settings are restored afterwards";
  const head = make("h4", "", make("b", "", HEADING), make("span", "", words)), list = make("ol");
  const more = make("div"), box = make("div", "rp-demos", head, list, more);
  const fill = () => {
    if (!store.bootId) return;
    list.replaceChildren(...rows(offered()));
    more.replaceChildren(...recordingButton(), ...elsewhere(list));
    element.append(box);
  };
  on("demos offered", fill);
  fill();
}

/** Open the list of all beside a button, those that cannot be shown here at the end, with the reasons.
 * @param {HTMLElement} button */
export function openDemoList(button) {
  const { left, bottom } = button.getBoundingClientRect();
  const fill = () => [make("ol", "rp-demo-menu", ...rows([...offered(), ...absent()])), ...recordingButton()];
  popover.open({ name: "demos", title: HEADING, x: left, y: bottom, fill });
}
