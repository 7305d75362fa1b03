/* The id of this browser tab. It survives a reload, and says which lanes and bursts on the server are the tab's. */
import { keep, ofTab, stored } from "./storage.js";

const KEY = "roseplay-tab";
const bytes = crypto.getRandomValues(new Uint8Array(12));

export const tab = stored(KEY, ofTab) || Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
keep(KEY, tab, ofTab);

export const ownTab = () => tab;

/** The inputs of an event, of which the last one is where the tab's id goes. */
export const withTab = (...inputs) => [...inputs.slice(0, -1), tab];
