/* A over B in one picture, in the place of the two distributions, to which a button leads. */
import { PairPanel } from "page/shared/pair/panel.js";
import { keep, stored } from "page/shared/storage.js";
import { lab, showOn } from "./state.js";

const KEPT = "roseplay-lab-distributions"; // whether these are shown instead

export function mount(element) {
  const around = element.closest("#rp-lab");
  const panel = new PairPanel(element, { around, back: "Distributions", opened: choose });
  const show = () => panel.showPair(lab.document?.summary?.pair ?? null, stored(KEPT) === null);
  showOn(show, "document", "summary");

  function choose(open) {
    keep(KEPT, open ? null : "1");
    show();
  }
}
