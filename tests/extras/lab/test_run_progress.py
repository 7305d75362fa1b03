"""What is reported about runs while an experiment is running."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest

from roseplay.extras.lab.measuring import RunError
from roseplay.extras.lab.progress import RunProgress, seconds_left
from roseplay.traffic.driver import Outcome
from tests.extras.lab.fake_arms import QUICK, MadeUpArm, MadeUpArms, ended, fake_lab
from tests.play.fake_engine import FakeEngine


def lasted(arm: str, seconds: float | None, elapsed: float | None = None) -> RunProgress:
    started = None if elapsed is None else time.monotonic() - elapsed
    return RunProgress(arm, 1, 3, started=started, seconds=seconds)


def test_a_run_waits_runs_and_ends() -> None:
    run = RunProgress("B, 64", 2, 3, {"arm": "B", "value": 64})
    about = {"label": "B, 64", "arm": "B", "value": 64, "repeat": 2, "total": 3}
    assert run.status() == {**about, "done": 0, "seconds": 0.0, "state": "waiting"}
    run.start()
    assert run.status()["state"] == "running"
    arrival: Any = None
    going = FakeEngine().submit([1])
    run.sent += [Outcome(arrival, None, 0, 0, 0, "refused"), Outcome(arrival, going, 0, 0, 0)]
    assert run.status()["done"] == 1
    run.finish()
    assert (run.status()["state"], run.status()["done"], run.sent) == ("done", 1, [])
    assert run.seconds == run.elapsed
    run.finish(cut=True)
    assert run.status()["state"] == "stopped"


def test_the_time_left_is_that_of_finished_runs_of_the_same_arm() -> None:
    assert seconds_left([lasted("A", None), lasted("B", None)]) is None
    runs = [lasted("A", 10.0), lasted("A", 20.0), lasted("B", 4.0)]
    assert seconds_left(runs) == 0
    assert seconds_left([*runs, lasted("A", None), lasted("B", None)]) == 15 + 4
    assert seconds_left([*runs, lasted("A", None, elapsed=5.0)]) == pytest.approx(10, abs=0.5)
    assert seconds_left([*runs, lasted("A", None, elapsed=500.0)]) == 0
    assert seconds_left([lasted("A", 10.0), lasted("B", None)]) == 10


@pytest.mark.parametrize("kind", ["sweep", "find"])
def test_a_run_of_a_value_that_fails_is_told_as_stopped(kind: str) -> None:
    runs = itertools.count(1)

    def figures(arm: MadeUpArm) -> dict[str, float]:
        if next(runs) == 2:
            raise RunError("the second run fails")
        return {}

    more = {"points": 3} if kind == "sweep" else {"itl_p99_ms": 40, "ttft_p95_ms": 300}
    asked = {"setting": "max_batch_size", "from": 1, "to": 16, **more}
    body = {"scenario": "poisson", "repeats": 2, "params": QUICK, kind: asked}
    status = ended(fake_lab(FakeEngine(), MadeUpArms(figures)).start(body))
    assert status["state"] == "error" and "the second run fails" in status["error"]
    states = [run["state"] for run in status["progress"]]
    assert states.count("stopped") == 1 and "running" not in states
