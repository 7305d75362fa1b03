/* Figures as the page writes them; the server writes the same, see roseplay/formats/numbers.py. */

const LONG_MS = 999.5; // what reads as 1 000 ms is told in seconds
export const THIN = "\u202f"; // a narrow no-break space

/** 1936 as "1 936". */
const count = (n) => (n == null ? "–" : Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, THIN));

/* Milliseconds as seconds: at most two decimals beside times of a second and more. */
const inSeconds = (v) => String(+(v / 1000).toPrecision(v < 100 ? 1 : v < LONG_MS ? 2 : 3));

const ordinals = new Intl.PluralRules("en", { type: "ordinal" });
const ENDINGS = { one: "st", two: "nd", few: "rd", other: "th" };

export const format = {
  count,
  /** "3rd". */
  ordinal: (n) => count(n) + ENDINGS[ordinals.select(n)],
  /** For an axis, from 10,000 on in thousands: "9 999", "15.5k", "200k". */
  short: (n) => (n < 1e4 ? count(n) : `${+(n / 1e3).toFixed(1)}k`),
  /** "1 request", "2 requests". */
  many: (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`,
  /** A size: kB, MB or GB, powers of a thousand. */
  bytes: (n) => {
    if (n < 1e6) return `${count(n / 1e3)} kB`;
    return n < 1e9 ? `${(n / 1e6).toFixed(n < 1e7 ? 1 : 0)} MB` : `${(n / 1e9).toFixed(1)} GB`;
  },
  /** Milliseconds: three figures are enough. */
  ms: (v) => (v == null ? "–" : v < 99.95 ? v.toFixed(1) : count(v)),
  /** Milliseconds where there is little room: from one second on in seconds, "1.23 s". */
  shortMs: (v) => (v >= LONG_MS ? `${inSeconds(v)} s` : format.ms(v)),
  /** Milliseconds that share a unit: in seconds where one of them is a second or longer.
   * @param {(number | null)[]} times */
  times: (times) => {
    const long = times.some((v) => v !== null && v >= LONG_MS);
    return { parts: times.map((v) => long && v !== null ? inSeconds(v) : format.ms(v)), unit: long ? "s" : "ms" };
  },
  /** What follows times measured under these ascending factors of slow motion: "", " at ×5" or " partly at ×5". */
  slowed: (factors) => {
    const slow = factors.filter((factor) => factor > 1).map((factor) => `×${+factor.toPrecision(6)}`).join(" and ");
    return slow && `${factors.length > 1 ? " partly" : ""} at ${slow}`;
  },
  /** Seconds as "1:05". */
  minutes: (s) => `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")}`,
  /** A budget or a limit: null is unlimited. */
  limit: (v) => (v == null ? "∞" : count(v)),
  /** A setting's value; a choice in words. @param {any} v @param {{options?: string[], shown?: string[]}} [setting] */
  value: (v, { options = [], shown = [] } = {}) => {
    if (typeof v === "string") return shown[options.indexOf(v)] ?? v;
    return v == null ? "∞" : v === true ? "on" : v === false ? "off" : v % 1 === 0 ? count(v) : String(v);
  },
  /** A figure with about three digits. */
  figure: (value) => {
    const size = Math.abs(value ?? 0);
    if (value == null || size >= 100 || Number.isInteger(value)) return count(value);
    return value.toFixed(size >= 10 ? 1 : size >= 0.1 ? 2 : 3);
  },
  /** A percentage. @param {number} value @param {number} [digits] by default as many as a figure has */
  percent: (value, digits) => `${digits === undefined ? format.figure(value) : value.toFixed(digits)}${THIN}%`,
  /** The range of a figure, or nothing where its ends read alike. */
  range: (range) => {
    const [low, high] = range.map(format.figure);
    return range.length < 2 || low === high ? "" : `${low}–${high}`;
  },
  /** Figures with the unit in which they are shown: milliseconds as seconds if one of them is a second or longer.
   * @param {string} unit
   * @param {(number | null)[]} values */
  inUnit: (unit, values) => {
    if (unit !== "ms" || !values.some((v) => v >= LONG_MS)) return { unit, values };
    return { unit: "s", values: values.map((v) => (v === null ? null : v / 1000)) };
  },
  /** A figure with its unit, such as "940 ms" and "1.75 s". */
  amount: (value, of = "ms") => {
    const { unit, values } = format.inUnit(of, [value]);
    return `${format.figure(values[0])} ${unit}`;
  },
  /** A median with its unit and range, such as "1.75 s (1.60–1.90)". */
  spread: ({ median, range }, of) => {
    const { unit, values: [middle, ...ends] } = format.inUnit(of, [median, ...range]), between = format.range(ends);
    return `${format.figure(middle)} ${unit}${between ? ` (${between})` : ""}`;
  },
  /** A ratio such as ×0.15. */
  ratio: (ratio) => {
    if (ratio === null) return "–";
    return `×${ratio === 0 ? "0" : ratio.toFixed(ratio < 0.1 ? 3 : ratio < 10 ? 2 : 1)}`;
  },
  /** Milliseconds as seconds, from one second on. */
  seconds: (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`),
  /** Milliseconds in whole seconds, minutes or hours. */
  duration: (ms) => {
    const [unit, length] = ms < 60000 ? ["s", 1000] : ms < 3600000 ? ["min", 60000] : ["h", 3600000];
    return `${Math.round(ms / length)} ${unit}`;
  },
  /** "2.5 s ago", "8 min ago". */
  ago: (ms) => `${ms < 60000 ? format.seconds(Math.max(0, ms)) : format.duration(ms)} ago`,
};
