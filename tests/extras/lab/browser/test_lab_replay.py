"""A recorded run that is forked into the Lab, and the Lab while a recording is shown."""

# ruff: noqa: F811 (fixtures that are imported)

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from roseplay.recording.reader import read
from roseplay.recording.recorded_run import RecordedRun
from tests.browser.test_replay import _own, mock_run, open_recording, page_of, run_on_disk, to_the_end  # noqa: F401


def test_a_moment_is_forked_into_the_lab(run_on_disk: Path, page: Page, tmp_path: Path) -> None:
    header, frames = run_on_disk.read_text().split("\n", 1)
    run_on_disk = tmp_path / run_on_disk.name
    recorded = json.loads(header)
    recorded["knobs"]["max_overtakes"] = None  # unlimited, which is not the default
    run_on_disk.write_text(f"{json.dumps(recorded)}\n{frames}")
    open_recording(page, run_on_disk)
    page.wait_for_function("() => Rose.store.tokens.end > 5 && (Rose.replay.pause(), true)")  # the first answer goes on
    knobs = page.evaluate("Rose.store.knobs")
    page.evaluate("Rose.store.marks.push({ t: 1, step: 0, changes: { prefill_interval: [3, 0] } })")
    page.get_by_role("button", name="Fork here").click()
    expect(page.locator(".rp-lab-error")).to_have_text("B has the recording's Prefill interval, A what it was before.")
    expect(page.get_by_role("radio", name="Your own traffic: choose a file")).to_be_checked()
    expect(page.get_by_role("radio", name="Your own traffic: choose a file")).to_contain_text("recording.jsonl from 0:")
    lines = [json.loads(line) for line in page.evaluate("Rose.lab.traffic.text").splitlines()]
    moment_ms = page.evaluate("Rose.replay.recording.time(Rose.replay.at())")
    run = RecordedRun(read(run_on_disk))
    going = [r for r in run.requests.values() if r.finished is None or r.finished > moment_ms]
    assert len(lines) == len(going) > 2
    assert lines[0]["arrival_s"] == 0, "what was running goes on"
    later = [r for r in going if r.submitted is not None and r.submitted > moment_ms]
    arrivals = sorted((r.submitted - moment_ms) / 1000 for r in later if r.submitted is not None)
    assert [line["arrival_s"] for line in lines if line["arrival_s"]] == pytest.approx(arrivals, abs=0.001)
    left = sum(len([token for token in r.token_runs if token.t > moment_ms]) for r in going)
    assert sum(line["answer_tokens"] for line in lines) == left
    for arm in ("A", "B"):
        planned = page.evaluate("(arm) => Rose.lab.plan[arm].knobs", arm)
        assert planned["max_overtakes"] is None
        assert planned.pop("prefill_interval") == {"A": 3, "B": knobs["prefill_interval"]}[arm]
        assert {name: knobs[name] for name in planned if name != "slow_motion"} == {
            name: value for name, value in planned.items() if name != "slow_motion"
        }


def test_there_is_nothing_to_fork_at_the_end(run_on_disk: Path, page: Page) -> None:
    open_recording(page, run_on_disk)
    to_the_end(page)
    page.get_by_role("button", name="Fork here").click()
    expect(page.locator("#rp-replay")).to_contain_text("Nothing runs or arrives after this moment.")


def test_the_lab_does_not_take_a_replays_settings_for_the_engines(run_on_disk: Path, page: Page) -> None:
    open_recording(page, run_on_disk)
    page.get_by_role("tab", name="Lab").click()
    page.get_by_role("radio", name="Find", exact=True).click()
    expect(page.locator("#rp-lab-base .rp-sub")).to_have_text("as recorded, not as the engine runs")
    page.locator("#lab-run").click()
    expect(page.locator(".rp-lab-error")).to_have_text(re.compile("^A replay is shown: go back to live first"))
    page.locator(".rp-leave").click()
    expect(page.locator("#rp-lab-base .rp-sub")).to_have_text("as the engine runs now")
