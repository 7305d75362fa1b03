/* The Lab's scenarios, brought once; then the newest result of this browser, or the one that the address names, is
 * shown. */
import { stored } from "../shared/storage.js";
import { restore } from "./files.js";
import { followJob } from "./job.js";
import { chooseScenario } from "./plan.js";
import { ask } from "./server.js";
import { lab, LAST_SCENARIO, say, scenarioNamed, tell } from "./state.js";

/** @type {Promise<void> | null} */
let loading = null;

export function loadLibrary() {
  loading = loading || load();
  return loading;
}

async function load() {
  try {
    lab.catalogue = await ask("");
  } catch (error) {
    loading = null;
    return say(error);
  }
  say("");
  tell("library");
  const last = stored(LAST_SCENARIO);
  chooseScenario(scenarioNamed(last) ? last : lab.catalogue.scenarios[0].name);
  if (lab.catalogue.state) await followJob(lab.catalogue.state);
  if (!lab.document) await restore();
}
