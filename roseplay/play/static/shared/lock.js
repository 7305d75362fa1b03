/* Controls that cannot be used for a while, with the reason, which stands in each control's title and description.
 * Controls that are disabled already are left alone; those that Gradio mounts later are locked too. Emits "lock" when
 * something has been locked or unlocked. */
import { emit } from "./events.js";

/** All parts that send something or change a setting. */
export const SENDING = "#rp-sched, #rp-more-knobs > :not(#rp-more-head), #rp-opt, #rp-traffic, #rp-say, #rp-sampling";

const CONTROLS = "button:not(.rp-term), input, select, textarea"; // buttons that only explain a term are always usable
const locks = new Map(); // name -> {reason, selectors}
const held = new Map(); // control -> its title before
let focused = null; // the control that had the focus when it was locked
let frame = 0;

export const locked = (element) => held.has(element);

/** Set an element's title; a locked control gets it when it is unlocked. */
export function setTitle(element, title) {
  if (held.has(element)) held.set(element, title);
  else element.title = title;
}

/** Lock every control in some parts of the page.
 * @param {string} name of the lock
 * @param {string | null} reason null unlocks them
 * @param {string} selectors of the parts */
export function lock(name, reason, selectors) {
  if (reason === null ? !locks.delete(name) : locks.get(name)?.reason === reason) return;
  if (reason !== null) locks.set(name, { reason, selectors });
  if (locks.size) late.observe(document.body, { childList: true, subtree: true });
  else late.disconnect();
  apply();
  emit("lock");
}

/* Every control that is to be locked, with the reason. */
function controlsToLock() {
  const reasons = new Map();
  for (const { reason, selectors } of locks.values()) {
    for (const part of document.querySelectorAll(selectors)) {
      const controls = part.matches(CONTROLS) ? [part] : part.querySelectorAll(CONTROLS);
      for (const control of controls) reasons.set(control, reason);
    }
  }
  return reasons;
}

function apply() {
  frame = 0;
  const now = controlsToLock();
  for (const control of held.keys()) if (!now.has(control)) release(control);
  for (const [control, reason] of now) {
    if (!held.has(control) && control.disabled) continue;
    hold(control, reason);
  }
  if (!locks.size && focused && focused.isConnected && document.activeElement === document.body) {
    focused.focus({ preventScroll: true });
  }
  if (!locks.size) focused = null;
}

function hold(control, reason) {
  if (control === document.activeElement) focused = control;
  if (!held.has(control)) held.set(control, control.title);
  control.disabled = true;
  control.title = reason;
  control.setAttribute("aria-description", reason);
  control.classList.add("rp-locked");
}

function release(control) {
  control.disabled = false;
  control.title = held.get(control);
  control.removeAttribute("aria-description");
  control.classList.remove("rp-locked");
  held.delete(control);
}

const late = new MutationObserver(() => {
  if (!frame) frame = requestAnimationFrame(apply);
});
