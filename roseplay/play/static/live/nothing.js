import { poll } from "../shared/poll.js";

/** What stands in a view that has nothing to draw. */
export const nothingYet = () => (poll.held ? "Nothing yet." : "Press Burst.");
