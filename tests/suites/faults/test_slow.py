"""Slow steps: however long they take, health does not report a fault as long as the reason is known."""

from __future__ import annotations

import time
from typing import Any

import pytest

from roseplay import Engine
from tests.suites.faults import scene
from tests.suites.faults.inject import Fault, injected
from tests.suites.faults.scene import WAIT_S, expect_right
from tests.suites.faults.table import AT, FORWARD
from tests.waiting import wait_until


def stalls(call: Any, *args: Any) -> Any:
    time.sleep(0.3)
    return call()


@pytest.mark.slow
def test_a_step_that_stalls_in_slow_motion_is_well(served, expected, monkeypatch, outcome) -> None:
    """Slow motion stretches the step by the time it took, far beyond the prediction."""
    engine, page = served
    monkeypatch.setattr("roseplay.engine.health.OVERDUE_S", 0.5)
    engine.set_knobs(slow_motion=20.0)
    with injected(Fault(FORWARD, stalls, 4)) as fault:
        streams = scene.begin(engine, armed=fault.arm)
        wait_until(lambda: fault.fired, "the fault acts")
        wait_until(lambda: page.health()[0] == 200, "the health knows of the stretch")
        until = time.monotonic() + 3  # of the six seconds to which the step is stretched
        while time.monotonic() < until:
            status, said = page.health()
            assert status == 200, said
    assert not any(stream.finished for stream in streams.values())
    engine.set_knobs(slow_motion=1.0)
    for name, stream in streams.items():
        expect_right(name, stream.result(WAIT_S), expected)
    outcome("slow: a stall of 0.3 s, twenty times slowed down", "health stayed good, all answers were right")


def test_a_step_longer_than_the_watchdogs_floor_costs_nothing_when_predicted(expected, monkeypatch, outcome) -> None:
    monkeypatch.setattr("roseplay.model.runner.ModelRunner.predict_s", lambda runner, step: 1.0)
    with scene.open_engine(step_timeout_s=0.2) as engine:
        check_survives_a_long_step(engine, expected)
    outcome("slow: a step of 0.6 s, predicted, where 0.2 s are allowed", "all answers were right")


def check_survives_a_long_step(engine: Engine, expected: dict[str, list[int]]) -> None:
    def long(call: Any, *args: Any) -> Any:
        time.sleep(0.6)
        return call()

    with injected(Fault(FORWARD, long, AT)) as fault:
        for name, stream in scene.begin(engine, armed=fault.arm).items():
            expect_right(name, stream.result(WAIT_S), expected)
        assert fault.fired
    assert engine.health().ok
