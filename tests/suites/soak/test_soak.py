"""The soak itself: it finds what grows and what disagrees, and short runs of all of it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from tests.suites.soak.audit import audit
from tests.suites.soak.journal import Journal
from tests.suites.soak.run import Settings, soak
from tests.suites.soak.trend import CountTrend, MemoryTrend, slope
from tests.suites.soak.watcher import Shown, Watcher

HOUR = [float(second) for second in range(600, 3600, 5)]


def noisy(seed: int) -> list[float]:
    """The memory of a healthy server, which goes up and down in steps and spikes."""
    seeded, level, values = random.Random(seed), 400.0, []
    for _ in HOUR:
        level = min(425.0, max(395.0, level + seeded.choice((0, 0, 0, 0, -3.0, 3.0))))
        values.append(level + (120.0 if seeded.random() < 0.05 else seeded.random()))
    return values


def test_slope_and_its_error_are_those_of_a_straight_line() -> None:
    gradient, error = slope([(t, 3.0 + 0.5 * t) for t in range(10)])
    assert (gradient, error) == pytest.approx((0.5, 0.0))
    gradient, error = slope([(0, 0), (1, 1), (2, 0), (3, 1)])
    assert gradient == pytest.approx(0.2)
    assert error == pytest.approx(0.2828, abs=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_memory_that_goes_up_and_down_is_flat_and_a_leak_is_not(seed: int) -> None:
    values = noisy(seed)
    assert MemoryTrend.of(list(zip(HOUR, values, strict=True))).flat
    leaking = [(t, value + 100.0 * t / 3600) for t, value in zip(HOUR, values, strict=True)]
    trend = MemoryTrend.of(leaking)
    assert not trend.flat
    assert trend.per_hour == pytest.approx(100.0, abs=45.0)


@pytest.mark.parametrize("seed", range(5))
def test_handles_that_come_and_go_are_flat_and_lost_ones_are_not(seed: int) -> None:
    seeded = random.Random(seed)
    held = [(t, 20.0 + seeded.randrange(15)) for t in HOUR]
    assert CountTrend.of(held, 4).flat
    assert not CountTrend.of([(t, value + t // 60) for t, value in held], 4).flat


def run_of_three(journal: Journal, watcher: Watcher) -> None:
    """A request of fixed length, one that was stopped, and a chat, as the clients and the page saw them."""
    journal.submitted("burst", [1], asked_s=1.0, exact=8)
    journal.submitted("lane", [2], asked_s=2.0, exact=None)
    journal.count("chats answered")
    with journal.stopping([2]):
        pass
    journal.read[2] = 3, "abort"
    now = time.monotonic()
    watcher.shown = {
        1: Shown("burst", 10, rows=8, tokens=8, reason="length", seen_finished_s=now),
        2: Shown("lane", 20, rows=3, tokens=3, reason="abort", seen_finished_s=now),
        3: Shown("api", 5, rows=4, tokens=4, reason="stop", seen_finished_s=now),
    }
    watcher.tokens = 15
    watcher.in_all = {"requests": 3, "prompt_tokens": 35, "computed": 30, "saved": 5}
    watcher.stats = {"running": 0, "waiting": 0, "kv_active": 0}


DIFFERENCES: dict[str, Callable[[Journal, Watcher], object]] = {
    "a token is missing at the end": lambda journal, watcher: setattr(watcher.shown[1], "tokens", 7),
    "read less than shown": lambda journal, watcher: journal.read.update({2: (2, "abort")}),
    "another kind": lambda journal, watcher: setattr(watcher.shown[1], "kind", "lane"),
    "one too many was shown": lambda journal, watcher: setattr(watcher.shown[3], "rows", 5),
    "aborted, and nobody stopped it": lambda journal, watcher: setattr(watcher.shown[1], "reason", "abort"),
    "an error": lambda journal, watcher: setattr(watcher.shown[3], "reason", "error"),
    "no end": lambda journal, watcher: setattr(watcher.shown[3], "reason", None),
    "another end in the lane": lambda journal, watcher: journal.read.update({2: (3, "stop")}),
    "a chat that was not shown": lambda journal, watcher: journal.count("chats answered"),
    "a request that was not shown": lambda journal, watcher: watcher.shown.pop(1),
    "wrong totals": lambda journal, watcher: watcher.in_all.update(prompt_tokens=34),
    "blocks in use at rest": lambda journal, watcher: watcher.stats.update(kv_active=1),
}


@pytest.mark.parametrize("difference", [None, *DIFFERENCES])
def test_the_audit_finds_each_difference(difference: str | None) -> None:
    journal = Journal()
    watcher = Watcher(1, journal)  # never started
    run_of_three(journal, watcher)
    if difference is not None:
        DIFFERENCES[difference](journal, watcher)
    assert bool(audit(journal, watcher).wrong) == (difference is not None)


def ran_well(settings: Settings) -> None:
    lines: list[str] = []
    document = soak(settings, threading.Event(), lines.append)
    assert document["failures"] == [], "\n".join(lines)
    assert document["audit"]["requests sent"][0] > 5
    assert document["steps"] > 50


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_few_seconds_of_everything_but_the_lab_agree() -> None:
    ran_well(Settings(seconds=10, lab_every_s=0, rate=2, sample_every_s=1))


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_most_of_a_minute_with_the_lab_agrees() -> None:
    ran_well(Settings(seconds=40, lab_every_s=15, rate=2, sample_every_s=1))
