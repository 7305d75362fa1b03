"""``roseplay bench simulate``: points are measured, scenarios predicted and then measured."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from roseplay.bench.main import main
from roseplay.bench.simulate import LIMITS, p50s_ms
from roseplay.clock import CpuClock
from roseplay.sim.outcome import RequestTimes, Simulated
from tests.model.families import FAMILIES


def test_scenarios_are_predicted_and_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FAMILIES["llama"]().save_pretrained(tmp_path)
    file = tmp_path / "simulate.json"
    given = ["--points", "1x4,4x4,2x24", "--scenarios", "batched-prefill", "--repeat-runs", "2", "--warmup-runs", "0"]
    given += ["--model", str(tmp_path), "--random-weights", "--threads", "1", "--json", str(file)]
    assert main(["simulate", *given]) == 0
    found = json.loads(file.read_text())
    assert [(point["streams"], point["prompt"]) for point in found["points"]] == [(1, 4), (4, 4), (2, 24)]
    assert [row["side"] for row in found["rows"]] == ["before", "after"]
    for row in found["rows"]:
        for figure in LIMITS:
            assert row["predicted"][figure] > 0
            low, high = row["measured_range"][figure]
            assert 0 < low <= row["measured"][figure] <= high
            assert row["error"][figure] == pytest.approx(row["predicted"][figure] / row["measured"][figure] - 1)
    said = capsys.readouterr().out
    assert "calibrated on 3 own points of" in said
    assert "TTFT  within 20%:" in said


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--points", "1x64,8x64", "not a list of at least 3 points"),
        ("--points", "1x64,8x64,two", "not a list of at least 3 points"),
        ("--scenarios", "nonsense", "no scenario is called 'nonsense'"),
    ],
)
def test_bad_lists_are_refused(flag: str, value: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", flag, value])
    assert stopped.value.code == 2 and said in capsys.readouterr().err


def test_simulated_figures_are_defined_like_measured_ones() -> None:
    """Two requests: tokens at 10, 20 and 40 ms, and at 20 and 40 ms after an arrival at 5 ms."""
    requests = [RequestTimes(0, 3, [[0, 2]]), RequestTimes(5_000_000, 3, [[1, 2]])]
    ends = np.array([10, 20, 40], np.int64) * 1_000_000
    played = Simulated(requests=requests, ends_ns=ends, skipped=0, tokens=5, busiest=2, peak_blocks=2, num_blocks=9)
    assert p50s_ms(played) == pytest.approx({"tpot": (15 + 20) / 2, "itl": 20, "ttft": (10 + 15) / 2})


def test_a_cpu_clock_counts_work_and_skips_waiting() -> None:
    clock, event = CpuClock(), threading.Event()
    before_ns = clock.now_ns()
    assert not clock.wait(event, 1000)  # nothing is to be computed, so that it returns at once
    assert 1000 <= (clock.now_ns() - before_ns) / 1e9 < 1010
    clock.is_idle = lambda: False
    event.set()
    before_ns = clock.now_ns()
    assert clock.wait(event, 1000)
    assert (clock.now_ns() - before_ns) / 1e9 < 10
    event.clear()
    asked = iter([False, False, True])  # busy for a while: the clock does not jump before
    clock.is_idle = lambda: next(asked)
    assert not clock.wait(event, 500)
    assert next(asked, None) is None
