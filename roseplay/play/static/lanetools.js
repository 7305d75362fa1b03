/* The buttons of a lane: edit the last question, generate the answer again, copy, new chat.
 *
 *   Rose.laneTools(lane, acts)   puts them into the lane's head; acts = {edit(lane, prompt), again(lane), anew(lane)}
 *   tools.show()                 which of them there is something to do for */
"use strict";
(function (Rose) {
  const STROKE = { fill: "none", stroke: "currentColor", "stroke-width": 1.3, "stroke-linecap": "round", "stroke-linejoin": "round" };
  const ICONS = {
    edit: "M2 12l.6-2.7L9.8 2.1l2.1 2.1-7.2 7.2zM8.4 3.5l2.1 2.1",
    again: "M11.5 7a4.5 4.5 0 1 1-1.3-3.2M10.6 1.2v2.9H7.7",
    copy: "M4.8 4.8h7v7h-7zM9.2 4.8v-2.6h-7v7h2.6",
    anew: "M7 2.2v9.6M2.2 7h9.6",
  };
  const WORDS = {
    edit: ["Edit the last question of lane", "Edit the last question"],
    again: ["Generate the last answer again in lane", "Generate the last answer again, with another seed"],
    copy: ["Copy the last answer of lane", "Copy the last answer; with Shift the whole chat"],
    anew: ["New chat in lane", "New chat: clears this lane"],
  };

  Rose.laneTools = function (lane, acts) {
    const number = lane.index + 1, box = document.createElement("div"), buttons = {};
    box.className = "rp-tools";
    for (const name of Object.keys(ICONS)) {
      const button = (buttons[name] = document.createElement("button"));
      button.type = "button";
      button.dataset.does = name;
      button.setAttribute("aria-label", `${WORDS[name][0]} ${number}`);
      button.title = WORDS[name][1];
      button.append(Rose.svg(14, 14, ["path", { d: ICONS[name], ...STROKE }]));
      box.append(button);
    }
    lane.stop.before(box);
    const last = () => lane.turns[lane.turns.length - 1];
    buttons.edit.onclick = () => last() && edit(lane, last(), (prompt) => acts.edit(number, prompt));
    buttons.again.onclick = () => acts.again(number);
    buttons.anew.onclick = () => acts.anew(number);
    buttons.copy.onclick = async (event) => {
      const whole = event.shiftKey, done = await copy(whole ? chat(lane) : last() ? last().text : "");
      lane.say(done ? `Lane ${number}: copied ${whole ? "the chat" : "the answer"}.` : `Lane ${number}: the browser does not let the page copy.`);
      tick(buttons.copy, done);
    };
    return {
      show() {
        box.hidden = !lane.turns.length;
        if (!Rose.locked(buttons.copy)) buttons.copy.disabled = !lane.turns.some((turn) => turn.text);
      },
    };
  };

  /* A tick for a moment where it went well. */
  function tick(element, done) {
    const path = element.querySelector("path");
    path.setAttribute("d", done ? "M2.5 7.5l3 3 6-7" : "M3 3l8 8M11 3l-8 8");
    setTimeout(() => path.setAttribute("d", ICONS.copy), 1200);
  }

  const chat = (lane) => lane.turns.map((turn) => `> ${turn.asked.data.replace(/\n/g, "\n> ")}\n\n${turn.text}`).join("\n\n");

  async function copy(text) {
    if (!text) return false;
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return copyOldWay(text); // no permission, or a page that did not come by https
    }
  }

  function copyOldWay(text) {
    const field = document.createElement("textarea"), focused = document.activeElement;
    field.value = text;
    field.style.cssText = "position:fixed;opacity:0";
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (focused) focused.focus();
    return done;
  }

  // ---- the edit field ---------------------------------------------------------------------------------------
  function edit(lane, turn, send) {
    if (lane.text.querySelector("form")) return;
    const form = document.createElement("form"), field = document.createElement("textarea");
    form.className = "rp-edit";
    field.value = turn.asked.data;
    field.rows = 2;
    field.setAttribute("aria-label", `Last question of lane ${lane.index + 1}`);
    const words = [["submit", "Send"], ["button", "Cancel"]].map(([type, text]) => Object.assign(document.createElement("button"), { type, textContent: text }));
    form.append(field, ...words);

    function close() {
      form.remove();
      turn.root.classList.remove("rp-editing");
    }

    form.onsubmit = (event) => {
      event.preventDefault();
      if (!field.value.trim()) return field.focus();
      close();
      send(field.value);
      lane.root.focus({ preventScroll: true });
    };
    words[1].onclick = close;
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
})(window.Rose);
