/* Keeps text scrolled to its end while it grows or its box changes size, unless the reader has scrolled up. */

const BOTTOM_PX = 24;

/** Boxes to be scrolled together at the next frame, so that the page is laid out only once.
 * @type {Set<Sticking>} */
const waiting = new Set();
/** @type {WeakMap<Element, Sticking>} */
const byBox = new WeakMap();
const sizes = new ResizeObserver((changes) => changes.forEach(({ target }) => byBox.get(target).follow()));

function scrollAll() {
  for (const one of waiting) one.scrollToEnd();
  waiting.clear();
}

export class Sticking {
  /** @param {HTMLElement} box the text, which scrolls */
  constructor(box) {
    this.box = box;
    this.sticks = true;
    this.bottom = -1;
    box.addEventListener("scroll", () => this.scrolled(), { passive: true });
    byBox.set(box, this);
    sizes.observe(box);
  }

  /** Scroll to the end soon if the reader is there; with `jump`, in any case. */
  follow(jump = false) {
    this.sticks ||= jump;
    if (!this.sticks) return;
    if (!waiting.size) requestAnimationFrame(scrollAll);
    waiting.add(this);
  }

  scrollToEnd() {
    if (!this.sticks) return; // its reader has scrolled up meanwhile
    this.box.scrollTop = this.box.scrollHeight;
    this.bottom = this.box.scrollTop;
  }

  /* Stop following when the reader scrolls up, and follow again at the bottom. */
  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    if (scrollTop !== this.bottom) this.sticks = scrollHeight - scrollTop - clientHeight < BOTTOM_PX; // else it was us
  }
}
