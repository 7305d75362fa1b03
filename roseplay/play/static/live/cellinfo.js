/* A popover beside a cell of the block map that joins several blocks, with what it stands for. */
import { blocks } from "../shared/blocks.js";
import { make, makeButton } from "../shared/dom.js";
import { on } from "../shared/events.js";
import { format } from "../shared/format.js";
import { factList, factRow, popover, requestTag } from "../shared/popover.js";

export const NAME = "cell";
const MOST_RANGES = 6, MOST_HOLDERS = 6;

/** The one that is open. @type {{members: Int32Array, seen: string, list: HTMLElement} | null} */
let open = null;

/** "Blocks 33–64", or their number if they are not consecutive. @param {Int32Array} members */
export function cellName(members) {
  const first = members[0], last = members[members.length - 1];
  return last - first === members.length - 1 ? `Blocks ${range(first, last)}` : format.many(members.length, "block");
}

/** How many there are of each kind, in words: "2 shared, 3 with one owner, 20 cached, 7 free". */
export function cellWords(members) {
  const n = [0, 0, 0, 0], words = ["free", "cached", "with one owner", "shared"];
  for (const block of members) n[blocks.kind(block)]++;
  return words.map((word, kind) => (n[kind] ? `${format.count(n[kind])} ${word}` : "")).filter(Boolean).reverse()
    .join(", ");
}

/**
 * Open it beside a point of the window; `closed` is called at its end.
 * @param {Int32Array} members
 * @param {number} x
 * @param {number} y
 * @param {{zoomIn: () => void, closed: () => void}} acts
 */
export function cellInfo(members, x, y, { zoomIn, closed }) {
  const list = make("div"), mine = { members, seen: "", list };
  popover.open({
    name: NAME,
    title: cellName(members),
    x,
    y,
    fill(body) {
      const zoom = makeButton("Zoom in", {
        className: "rp-back",
        onclick() {
          popover.close();
          zoomIn();
        },
      });
      fill(mine);
      body.append(list, zoom);
    },
    closed() {
      if (open === mine) open = null;
      closed();
    },
  });
  open = mine;
}

on("reset", () => {
  if (open) popover.close();
});
on("frame", () => {
  if (open && look(open.members) !== open.seen) fill(open);
});

const look = (members) => Array.from(members, (n) => `${blocks.references[n]} ${whose(n)}`).join();

/* A block's owner or, if it has none, its kind. */
const whose = (block) => ["free", "cached"][blocks.kind(block)] ?? blocks.owner[block];

function fill(mine) {
  const { members, list } = mine,
    numbers = members.slice().sort(),
    of = new Map(Array.from(numbers, (n) => [whose(n), []]));
  for (const block of numbers) of.get(whose(block)).push(block);
  const holders = [...of.keys()].filter((key) => typeof key === "number"), more = holders.length - MOST_HOLDERS;
  const named = (words, found = []) => found.length > 0 && factRow(words, ranges(found));
  mine.seen = look(members);
  list.replaceChildren(
    make("p", "", `${format.many(members.length, "block")} in one cell: ${cellWords(members)}.`),
    factList(
      ...holders.slice(0, MOST_HOLDERS).map((rid) => named(rid < 0 ? "unknown" : requestTag(rid), of.get(rid))),
      more > 0 && factRow("others", format.many(more, "request")),
      named("shared", numbers.filter((block) => blocks.kind(block) === blocks.SHARED)),
      named("cached", of.get("cached")),
      named("free", of.get("free")),
    ),
  );
  popover.fit();
}

const range = (first, last) => (first === last ? String(first) : `${first}–${last}`);

/** Increasing numbers as ranges: "3–5, 9". */
export function ranges(numbers, most = MOST_RANGES) {
  const found = [];
  for (const number of numbers) {
    const newest = found[found.length - 1];
    if (newest && newest[1] === number - 1) newest[1] = number;
    else found.push([number, number]);
  }
  const more = found.slice(most).reduce((sum, [first, last]) => sum + last - first + 1, 0);
  return found.slice(0, most).map(([first, last]) => range(first, last)).join(", ") +
    (more ? ` and ${format.count(more)} more` : "");
}
