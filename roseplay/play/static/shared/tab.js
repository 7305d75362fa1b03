/* The id of this browser tab. It survives a reload, and identifies the tab's lanes and bursts on the server. */
import { keep, ofTab, stored } from "./storage.js";

const KEY = "roseplay-tab";
const bytes = crypto.getRandomValues(new Uint8Array(12));

export const tab = stored(KEY, ofTab) || Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
keep(KEY, tab, ofTab);
