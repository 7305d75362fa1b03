/* Rose.popover: the page's one small window over a view, a sheet at the bottom on a phone. Its owner fills it.
 *
 *   Rose.popover.open({x, y, name, title, stays, fill(body), closed})   beside a point of the window, on its emptier side
 *   Rose.popover.close()      also what Esc, the cross, opening another one and, unless it stays, a click elsewhere do;
 *                             `closed` is called
 *   Rose.popover.name         whose it is while it is open, else null
 *   Rose.popover.row, .facts  lines of a name and a value; values are text nodes only */
"use strict";
(function (Rose) {
  const GAP = 14, EDGE = 8, make = Rose.element;
  const popover = (Rose.popover = { name: null, open, close, fits, element: make, row, facts });
  let box = null, body = null, heading = null, current = null;

  function build() {
    const cross = make("button");
    cross.type = "button";
    cross.setAttribute("aria-label", "Close");
    cross.append(Rose.cross());
    cross.onclick = () => close();
    heading = make("h4");
    heading.id = "rp-pop-title";
    body = make("div", "rp-pop-body");
    body.setAttribute("aria-live", "polite");
    box = make("section", "rp-pop", make("header", "", heading, cross), body);
    box.setAttribute("role", "dialog");
    box.setAttribute("aria-labelledby", heading.id);
    box.hidden = true;
    document.body.append(box);
  }

  function open(spec) {
    close();
    if (!box) build();
    current = spec;
    popover.name = spec.name;
    box.dataset.of = spec.name;
    heading.textContent = spec.title;
    body.replaceChildren();
    spec.fill(body);
    box.hidden = false;
    fits();
  }

  /** Put it in its place again, after what it says has changed. */
  function fits() {
    if (!current) return;
    const { x, y } = current, width = box.offsetWidth, height = box.offsetHeight;
    const left = x > innerWidth / 2 ? x - GAP - width : x + GAP;
    box.style.left = `${Math.max(EDGE, Math.min(innerWidth - width - EDGE, left))}px`;
    box.style.top = `${Math.max(EDGE, Math.min(innerHeight - height - EDGE, y - height / 3))}px`;
  }

  function close() {
    if (!current) return;
    const { closed } = current;
    current = popover.name = null;
    box.hidden = true;
    if (closed) closed();
  }

  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !current) return;
    event.stopPropagation(); // a zoom stays until the next one
    event.preventDefault();
    close();
  }, true);

  document.addEventListener("pointerdown", (event) => {
    if (current && !current.stays && !box.contains(event.target)) close();
  }, true);

  // ---- what goes into it ------------------------------------------------------------------------------------
  function row(name, ...value) {
    return make("div", "", make("dt", "", name), make("dd", "", ...value));
  }

  function facts(...rows) {
    return make("dl", "", ...rows.filter(Boolean));
  }

  /** A request's square and number. */
  popover.request = function (rid) {
    const square = make("i");
    square.style.background = Rose.color(rid);
    return make("span", "rp-who", square, `#${rid}`);
  };
})(window.Rose);
