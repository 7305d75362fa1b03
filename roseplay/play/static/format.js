/* Rose.format: figures as the page writes them. */
"use strict";
(function (Rose) {
  const THIN = "\u202f";

  const format = (Rose.format = {
    /** 1936 -> "1 936" */
    count: (n) => (n == null ? "–" : Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, THIN)),
    /** Milliseconds: three figures are enough. */
    ms: (v) => (v == null ? "–" : v < 99.95 ? v.toFixed(1) : format.count(v)),
    /** A budget or a limit: null is unlimited. */
    limit: (v) => (v == null ? "∞" : format.count(v)),
    /** A setting of any kind. */
    seconds: (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`),
  });

  /** What stands in a view that has nothing to draw. */
  Rose.nothingYet = () => (Rose.replay && Rose.replay.on ? "Nothing yet." : "Press Burst.");

  /** Write text where it has changed; a text node that stays put keeps selections and costs no layout. */
  Rose.write = function (element, text) {
    if (element.textContent !== text) element.textContent = text;
  };
})(window.Rose);
