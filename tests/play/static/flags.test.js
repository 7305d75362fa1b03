import { given } from "./page.js";
import assert from "node:assert/strict";
import test from "node:test";
import { vllmFlag } from "../../../roseplay/play/static/shared/given.js";

const { knobs, config } = given.settings;

test("settings as vLLM's flags", () => {
  const cases = /** @type {[any, any, string][]} */ ([
    [knobs.cuda_graphs, true, "--no-enforce-eager"],
    [knobs.cuda_graphs, false, "--enforce-eager"],
    [knobs.overlap, false, "--no-async-scheduling"],
    [knobs.step_max_tokens, null, ""],
    [knobs.prefill_max_tokens, 64, ""],
    [config.dtype, "float16", "--dtype float16"],
  ]);
  for (const [setting, value, flag] of cases) assert.equal(vllmFlag(setting, value), flag);
});
