"""Long steps are not a failure, a frozen worker is one, and any caller can ask which it is."""

from __future__ import annotations

import pytest

from roseplay.engine.health import Watchdog
from roseplay.engine.transport import Heartbeat


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
