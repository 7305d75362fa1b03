/* The buttons of a lane: edit the last question, generate the answer again, copy, clear, new chat. */
import { copy } from "../shared/copy.js";
import { make, makeButton, svg } from "../shared/dom.js";
import { locked } from "../shared/lock.js";

const ROUND = { "stroke-linecap": "round", "stroke-linejoin": "round" };
const STROKE = { fill: "none", stroke: "currentColor", "stroke-width": 1.3, ...ROUND };
const ICONS = {
  edit: "M2 12l.6-2.7L9.8 2.1l2.1 2.1-7.2 7.2zM8.4 3.5l2.1 2.1",
  again: "M11.5 7a4.5 4.5 0 1 1-1.3-3.2M10.6 1.2v2.9H7.7",
  copy: "M4.8 4.8h7v7h-7zM9.2 4.8v-2.6h-7v7h2.6",
  clear: "M2.5 4h9M5.5 4v-1.6h3v1.6M3.8 4l.6 7.8h5.2l.6-7.8",
  newChat: "M7 2.2v9.6M2.2 7h9.6",
};
const WORDS = {
  edit: ["Edit the last question of lane", "Edit the last question"],
  again: ["Generate the last answer again in lane", "Generate the last answer again, with another seed"],
  copy: ["Copy the last answer of lane", "Copy the last answer; with Shift the whole chat"],
  clear: ["Clear the chat of lane", "Clear this chat"],
  newChat: ["New chat beside lane", "New chat in an empty lane"],
};

export class LaneTools {
  /** @param {import("./lane.js").Lane} lane @param {import("./lane.js").LaneActs} acts */
  constructor(lane, acts) {
    const { number } = lane, tools = Object.keys(ICONS).map((name) => tool(name, number));
    const [edits, again, copies, clear, newChat] = tools;
    this.lane = lane;
    this.box = make("div", "rp-tools", ...tools);
    this.copies = copies;
    edits.onclick = () => this.last() && edit(lane, this.last(), (prompt) => acts.edit(number, prompt));
    again.onclick = () => acts.again(number);
    clear.onclick = () => {
      lane.plan([]);
      acts.clear(number);
    };
    newChat.onclick = acts.newChat;
    copies.onclick = async (event) => {
      const whole = event.shiftKey, done = await copy(whole ? chat(lane) : this.last() ? this.last().said : "");
      const words = done ? `copied ${whole ? "the chat" : "the answer"}` : "the browser does not let the page copy";
      acts.say(`Lane ${number}: ${words}.`);
      tick(copies, done);
    };
  }

  last() {
    return this.lane.turns[this.lane.turns.length - 1];
  }

  /** Show the buttons that have something to act on. */
  show() {
    this.box.hidden = !this.lane.turns.length;
    if (!locked(this.copies)) this.copies.disabled = !this.lane.turns.some((turn) => turn.text);
  }
}

function tool(name, number) {
  const [label, title] = WORDS[name], values = { "data-does": name, "aria-label": `${label} ${number}`, title };
  return makeButton(svg(14, 14, ["path", { d: ICONS[name], ...STROKE }]), values);
}

/* Show a tick for a moment if it succeeded. */
function tick(element, done) {
  const path = element.querySelector("path");
  path.setAttribute("d", done ? "M2.5 7.5l3 3 6-7" : "M3 3l8 8M11 3l-8 8");
  setTimeout(() => path.setAttribute("d", ICONS.copy), 1200);
}

function chat(lane) {
  const quote = (text) => `> ${text.replace(/\n/g, "\n> ")}`;
  return lane.turns.map((turn) => `${quote(turn.asked.data)}\n\n${turn.text}`).join("\n\n");
}

// ---- the edit field ---------------------------------------------------------------------------------------
function edit(lane, turn, done) {
  if (lane.text.querySelector("form")) return;
  const values = { value: turn.asked.data, rows: 2, "aria-label": `Last question of lane ${lane.number}` };
  const field = make("textarea", values), cancel = makeButton("Cancel", { onclick: close });
  const form = make("form", "rp-edit", field, make("button", { type: "submit" }, "Send"), cancel);

  function close() {
    form.remove();
    turn.root.classList.remove("rp-editing");
  }

  form.onsubmit = (event) => {
    event.preventDefault();
    if (!field.value.trim()) return field.focus();
    close();
    done(field.value);
    lane.root.focus({ preventScroll: true });
  };

  field.onkeydown = (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
      lane.root.focus({ preventScroll: true });
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      form.requestSubmit();
    }
  };
  turn.root.classList.add("rp-editing");
  turn.question.after(form);
  field.focus({ preventScroll: true });
  field.select();
  lane.text.scrollTop += form.getBoundingClientRect().top - lane.text.getBoundingClientRect().top - 4;
}
