/* Rose.element and Rose.svg: every element that a script makes. Text goes in as text nodes, whatever it says; no script of the page
 * writes markup (tests/play/test_static.py).
 *
 *   Rose.element(tag, className, ...inside)   an element; strings inside are text
 *   Rose.button(words, className)             a button that submits nothing
 *   Rose.svg(width, height, ...shapes)        a drawing beside words, hidden from screen readers; a shape is [tag, {attribute: value}]
 *   Rose.icon(path)                           a 14 px drawing of one filled path
 *   Rose.cross()                              the drawing on buttons that close or stop */
"use strict";
window.Rose = window.Rose || {};
(function (Rose) {
  const SVG = "http://www.w3.org/2000/svg";

  Rose.element = function (tag, className, ...inside) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...inside);
    return element;
  };

  Rose.button = function (words, className = "") {
    const button = Rose.element("button", className, words);
    button.type = "button";
    return button;
  };

  function drawn(tag, attributes) {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  Rose.svg = function (width, height, ...shapes) {
    const svg = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    svg.append(...shapes.map(([tag, attributes]) => drawn(tag, attributes)));
    return svg;
  };

  Rose.icon = (path) => Rose.svg(14, 14, ["path", { d: path, fill: "currentColor" }]);

  Rose.cross = () => Rose.svg(10, 10, ["path", { d: "M1 1l8 8M9 1l-8 8", stroke: "currentColor", "stroke-width": 1.4 }]);
})(window.Rose);
