"""Detecting and reporting that this process itself makes latencies longer."""

from __future__ import annotations

import time

import pytest

from roseplay.clock import SYSTEM_CLOCK
from roseplay.config import SamplingParams
from roseplay.extras.servers.lateness import Lateness
from tests.extras.servers.servers import Script, attached, words
from tests.waiting import wait_until

CHAT = [{"role": "user", "content": "Hello"}]


class HandClock:
    now = 10**12

    def now_ns(self) -> int:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def lateness(clock: HandClock) -> Lateness:
    return Lateness(clock)  # type: ignore[arg-type]


def sent(lateness: Lateness, clock: HandClock, *late_ms: float) -> None:
    for ms in late_ms:
        lateness.sent(clock.now - round(ms * 1e6), clock.now)


def test_requests_that_leave_in_time_are_nothing_to_mention(lateness: Lateness, clock: HandClock) -> None:
    assert lateness.words is None
    sent(lateness, clock, *[2.0] * 99, 800.0)  # a single late one does not affect the p95
    assert lateness.words is None


def test_late_requests_are_mentioned_for_five_seconds(lateness: Lateness, clock: HandClock) -> None:
    sent(lateness, clock, *[2.0] * 90, *[120.0] * 10)  # most are in time, so the median would not show it
    assert lateness.words is not None
    assert "requests are sent 120 ms after they are due (p95 of 5 s)" in lateness.words
    clock.now += 6 * 10**9
    assert lateness.words is None


def test_a_loop_that_is_held_up_is_noticed() -> None:
    with attached(Script(words("Some ", "words"))) as remote:
        assert remote.client_delay is None
        # The thread that reads all streams calls the listeners, so a slow listener delays the reading of all streams.
        held = [remote.submit(CHAT, SamplingParams(), on_update=lambda _: time.sleep(0.1)) for _ in range(3)]
        wait_until(lambda: all(stream.finished for stream in held))
        wait_until(lambda: remote.client_delay is not None, timeout=5)
        assert "tokens are read" in str(remote.client_delay)


def test_a_request_is_late_from_when_it_was_due() -> None:
    with attached(Script(words("Yes"))) as remote:
        due_ns = SYSTEM_CLOCK.now_ns() - 10**9  # its traffic scheduled it a second ago
        remote.submit(CHAT, due_ns=due_ns).result(timeout=30)
        assert "requests are sent" in str(remote.client_delay)
