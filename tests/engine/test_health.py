"""Long steps are not a failure, a frozen worker is one, and any caller can ask which it is."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from roseplay import Engine, SamplingParams
from roseplay.engine.health import Watchdog
from roseplay.engine.transport import Heartbeat
from roseplay.model.runner import ModelRunner
from tests.engine.test_engine import LONG
from tests.waiting import wait_until

ONE = SamplingParams(max_new_tokens=1, ignore_eos=True)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def wait(watchdog, clock, seconds, owes=True):
    for _ in range(round(seconds / 0.1)):
        clock.now += 0.1
        watchdog.look(owes)


def test_a_silent_worker_is_overdue_then_frozen(clock):
    watchdog = Watchdog(120, clock)
    wait(watchdog, clock, 2.9)
    assert watchdog.overdue() is None
    wait(watchdog, clock, 0.3)
    assert "has not answered for 3 s" in watchdog.overdue()
    assert watchdog.frozen(1.0) is None
    wait(watchdog, clock, 117)
    assert "no sign of life for 120 s" in watchdog.frozen(1.0)
    watchdog.heard()
    assert watchdog.overdue() is watchdog.frozen(1.0) is None


def test_a_step_may_take_three_times_its_prediction_before_it_is_overdue(clock):
    watchdog = Watchdog(120, clock)
    watchdog.step_started(7, 20.0)
    wait(watchdog, clock, 59)
    assert watchdog.overdue() is None
    wait(watchdog, clock, 2)
    assert "predicted to take 20.0 s" in watchdog.overdue()
    wait(watchdog, clock, 130)
    assert watchdog.frozen(1.0) is None  # the limit is ten times the prediction, not 120 s
    wait(watchdog, clock, 20)
    assert "no sign of life for 200 s" in watchdog.frozen(1.0)


def test_a_step_that_is_announced_late_has_its_whole_time(clock):
    watchdog = Watchdog(120, clock)
    wait(watchdog, clock, 100)
    watchdog.step_started(7, 1.0)
    wait(watchdog, clock, 2.9)
    assert watchdog.overdue() is None


def test_a_prediction_holds_until_its_step_has_ended(clock):
    watchdog = Watchdog(120, clock)
    watchdog.step_started(7, 20.0)
    watchdog.step_ended(6)  # the step before it, which was in flight
    wait(watchdog, clock, 10)
    assert watchdog.overdue() is None
    watchdog.step_ended(7)
    wait(watchdog, clock, 4)
    assert watchdog.overdue() is not None


def test_nothing_is_expected_of_an_idle_worker(clock):
    watchdog = Watchdog(120, clock)
    wait(watchdog, clock, 500, owes=False)
    assert watchdog.overdue() is watchdog.frozen(1.0) is None


def test_time_in_which_this_process_was_stopped_does_not_count(clock):
    watchdog = Watchdog(120, clock)
    wait(watchdog, clock, 1)
    clock.now += 500
    watchdog.look(True)
    assert watchdog.overdue() is watchdog.frozen(1.0) is None


def test_a_heartbeat_is_missed_only_while_somebody_looks(clock):
    class Count:
        value = 0

    heartbeat = Heartbeat(Count, clock)
    for _ in range(40):
        clock.now += 0.1
        heartbeat.missing_for_s()
    assert heartbeat.missing_for_s() == pytest.approx(4.0)
    Count.value += 1
    assert heartbeat.missing_for_s() == 0.0
    clock.now += 500  # nothing checked meanwhile
    assert heartbeat.missing_for_s() == 0.0


def hold_steps(monkeypatch, predicted_s):
    """Makes steps wait for the event that this returns, with a predicted time of ``predicted_s``."""
    release, execute = threading.Event(), ModelRunner.execute

    def held(self, step):
        release.wait(20)
        return execute(self, step)

    monkeypatch.setattr(ModelRunner, "execute", held)
    monkeypatch.setattr(ModelRunner, "predict_s", lambda self, step: predicted_s)
    return release


def test_a_long_step_that_is_predicted_kills_no_healthy_engine(tiny_llama, monkeypatch):
    with Engine(tiny_llama, block_size=4, num_blocks=50, step_timeout_s=0.2) as engine:
        release = hold_steps(monkeypatch, predicted_s=5.0)
        stream = engine.submit([3, 4], ONE)
        wait_until(lambda: engine._watchdog.silent_for_s > 0.6)
        health = engine.health(timeout=0.1)
        assert health.ok
        assert "long step" in health.detail
        release.set()
        assert stream.result(20).finish_reason == "length"
        assert engine.health().detail == "ok"


def test_an_overdue_worker_says_so_and_recovers(tiny_llama, monkeypatch):
    monkeypatch.setattr("roseplay.engine.health.OVERDUE_S", 0.3)
    with Engine(tiny_llama, block_size=4, num_blocks=50) as engine:
        release = hold_steps(monkeypatch, predicted_s=0.01)
        stream = engine.submit([3, 4], ONE)
        wait_until(lambda: engine.overdue is not None)
        assert not engine.health(timeout=0.1).ok
        release.set()
        assert stream.result(20).finish_reason == "length"
        wait_until(lambda: engine.overdue is None)
        assert engine.health().ok


def test_a_paused_engine_is_well(engine):
    engine.pause()
    engine.submit([3], LONG)
    assert engine.health().detail == "ok"
    engine.resume()


def test_a_stopped_process_shows_and_is_replaced(monkeypatch):
    """Its GPU is simulated: two workers that import torch would take most of the test's time."""
    monkeypatch.setattr("roseplay.engine.client.OVERDUE_S", 1.0)
    monkeypatch.setattr("roseplay.engine.client.STOPPED_S", 3.0)
    feeders = lambda: [thread for thread in threading.enumerate() if thread.name == "QueueFeederThread"]  # noqa: E731
    others = len(feeders())
    simulated = {"run_as": "h100", "worker": "process", "block_size": 4, "num_blocks": 50}
    with Engine("qwen3-0.6b", **simulated, max_model_len=64, slow_motion=100) as engine:
        stream = engine.submit([3, 4], LONG)
        wait_until(lambda: stream.token_ids)
        os.kill(engine.worker_pid, signal.SIGSTOP)
        for _ in range(400):  # more than its pipe takes
            engine.submit([3] * 10, LONG)
        wait_until(lambda: engine.overdue is not None)
        assert "process has not run" in engine.health(timeout=0.1).detail
        assert "process has not run" in stream.result(20).error
        engine.set_knobs(slow_motion=1)
        assert engine.submit([3, 4], LONG).result(60).finish_reason == "length"
        assert engine.health().ok
        wait_until(lambda: len(feeders()) == others + 1)  # only the one of the worker that runs
