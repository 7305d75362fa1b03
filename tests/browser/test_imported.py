"""An imported run on the page: it has steps and cached blocks, but no requests."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from roseplay.wire.forward_pass import ForwardPassMetrics, QueuedRequests, ScheduledRequests
from roseplay.wire.imported_run import ImportedRun
from roseplay.wire.kv_events import BlockRemoved, BlockStored, KvEventBatch
from roseplay.wire.problems import Problems

SHOWN = """() => {
  const { steps, requests, tokens, stats } = Rose.store;
  const last = (steps.end - 1) & steps.mask, { free, cached } = Rose.blocks.counts();
  return { steps: steps.end, prompt: steps.prompt_tokens[last], decode: steps.decode_tokens[last],
    waiting: stats.waiting, requests: requests.size, tokens: tokens.end, free, cached };
}"""


def imported(path: Path, *, kv: bool) -> Path:
    """Write two seconds of steps; with ``kv``, also forty blocks, ten of which are removed at the end."""
    rng = random.Random(0)
    run = ImportedRun(Problems(), "test", name="someone else's")
    for number in range(40):
        prompt = rng.choice([0, 0, 200])
        scheduled = ScheduledRequests(int(prompt > 0), prompt, 0.0, 0, 7)
        run.take_metrics(50.0 * number, ForwardPassMetrics(1, "w", 0, number, "s", 0.03, scheduled, QueuedRequests(2)))
        if kv:
            stored = BlockStored([number], None, [1] * 16, 16, None, None, None)
            run.take_kv_events(50.0 * number + 20, KvEventBatch(0.0, [stored]))
    if kv:
        run.take_kv_events(2000, KvEventBatch(0.0, [BlockRemoved(list(range(10)), None)]))
    with path.open("wb") as file:
        file.writelines(run.lines())
    return path


@pytest.mark.parametrize("kv", [True, False])
def test_an_imported_run_replays(page: Page, tmp_path: Path, kv: bool) -> None:
    page.get_by_role("tab", name="Traces").click()
    page.locator("#rp-traces-all input[type=file]").set_input_files(imported(tmp_path / "run.jsonl", kv=kv))
    expect(page.locator("#rp-replay")).to_be_visible()
    expect(page.locator(".rp-model-chip")).to_contain_text("someone else's")
    page.wait_for_function("() => Rose.replay.at() > 300")
    page.evaluate("Rose.replay.seek(1e9)")
    shown = page.evaluate(SHOWN)
    blocks = {"free": 10, "cached": 30} if kv else {"free": 0, "cached": 0}
    assert {**shown, "prompt": 0} == {
        "steps": 40, "prompt": 0, "decode": 7, "waiting": 2, "requests": 0, "tokens": 0, **blocks,
    }  # fmt: skip
    expect(page.locator(".rp-kpi.rw b")).to_have_text(re.compile(r"/2$"))  # the header's figures are written
    figures = page.locator("#rp-kpis").inner_text()
    assert "NaN" not in figures
    assert "undefined" not in figures
