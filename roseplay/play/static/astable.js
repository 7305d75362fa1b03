/* Rose.asTable: a canvas's other form, for who cannot see it or wants to read it: a real table in the panel's place.
 *
 *   {button, bind(element)}; spec: name (of the region), columns ([title, meaning]), read() -> {caption, rows: [[cell, …]]}
 * It is read at most once a second, only while it is shown; cells are text, rows beyond MOST are counted in the caption. */
"use strict";
(function (Rose) {
  const EVERY_MS = 1000, MOST = 100;

  Rose.asTable = function (spec) {
    const switches = Rose.button("table", "rp-as-table"), button = Rose.element("span", "rp-tg", switches);
    switches.title = "Show this as a table";
    switches.setAttribute("aria-label", "as table");
    switches.setAttribute("aria-pressed", "false");
    let box = null, timer = 0, readAt = -Infinity;

    const make = (tag, ...inside) => {
      const element = document.createElement(tag);
      element.append(...inside);
      return element;
    };

    function build() {
      const heads = spec.columns.map(([title, meaning]) => Object.assign(make("th", title), { scope: "col", title: meaning || "" }));
      box = make("div", make("table", make("caption"), make("thead", make("tr", ...heads)), make("tbody")));
      box.className = "rp-table";
      box.tabIndex = 0; // so that the keys scroll it
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", spec.name);
      return box;
    }

    function fill() {
      const { caption, rows } = spec.read(), body = box.querySelector("tbody"), shown = rows.slice(0, MOST);
      const more = rows.length > MOST ? ` And ${Rose.format.count(rows.length - MOST)} more.` : "";
      Rose.write(box.querySelector("caption"), caption + more);
      while (body.rows.length > shown.length) body.lastElementChild.remove();
      while (body.rows.length < shown.length) {
        const [first, ...others] = spec.columns;
        body.append(make("tr", Object.assign(make("th"), { scope: "row", title: first[1] || "" }), ...others.map(() => make("td"))));
      }
      shown.forEach((cells, i) => cells.forEach((cell, k) => Rose.write(body.rows[i].cells[k], String(cell))));
    }

    /* Now if the last time is a second ago, else when it is. */
    function refresh() {
      if (!box || box.hidden || timer) return;
      timer = setTimeout(() => {
        timer = 0;
        if (box.hidden) return;
        readAt = performance.now();
        fill();
      }, Math.max(0, EVERY_MS - (performance.now() - readAt)));
    }

    function bind(element) {
      const plot = element.querySelector(".rp-plot");
      switches.onclick = () => {
        const on = switches.getAttribute("aria-pressed") !== "true";
        if (!box) plot.append(build());
        switches.setAttribute("aria-pressed", on);
        plot.classList.toggle("rp-tabled", on);
        box.hidden = !on;
        if (on) fill();
      };
      for (const event of ["frame", "zoom"]) Rose.on(event, refresh);
    }

    return { button, bind };
  };
})(window.Rose);
