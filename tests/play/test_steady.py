"""Steady traffic: open loop, seeded, and it ends by itself where it should."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from roseplay.engine.errors import EngineBusyError
from roseplay.play.steady import MOST_S, MOST_WAITING, SteadyPlan, SteadyTraffic
from roseplay.traffic.arrivals import endless, poisson


class Time:
    """A clock that moves on by itself whenever somebody waits for it."""

    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.ns += int(seconds * 1e9) + 1
        return event.is_set()


class Requests:
    """What was sent, and when; ``until`` calls something before the request with that number."""

    def __init__(self, time: Time, *, scheduled: bool = True) -> None:
        self.time, self.scheduled = time, scheduled
        self.at_s: list[float] = []
        self.made: list[Any] = []
        self.before: dict[int, Any] = {}

    def send(self, index: int) -> Any:
        assert index == len(self.made)
        self.before.get(index, lambda: None)()
        self.at_s.append(self.time.ns / 1e9)
        metrics = SimpleNamespace(scheduled_ns=1 if self.scheduled else None)
        self.made.append(SimpleNamespace(finished=False, stream=SimpleNamespace(metrics=metrics)))
        return self.made[-1]


def plan(**changes: Any) -> SteadyPlan:
    return SteadyPlan(**{"rate": 10.0, "spacing": "even", "kind": "unique", "seed": 3, **changes})


def play(requests: Requests, watched: Any = lambda: True, **changes: Any) -> SteadyTraffic:
    """Run it to its end."""
    traffic = SteadyTraffic(plan(**changes), requests.send, watched, requests.time)
    traffic.start()
    traffic._thread.join(timeout=20)
    assert not traffic.running
    return traffic


def gone() -> None:
    raise EngineBusyError("256 requests wait already")


@pytest.fixture
def requests() -> Requests:
    return Requests(Time())


def test_requests_arrive_at_the_rate_whether_or_not_others_are_answered(requests: Requests) -> None:
    requests.before[25] = gone
    figures = play(requests).figures()
    assert requests.at_s == pytest.approx([i / 10 for i in range(25)], abs=0.001)
    assert (figures["sent"], figures["done"], figures["on"]) == (25, 0, False)
    assert figures["stopped"] == "256 requests wait already"


def test_poisson_gaps_come_from_the_seed(requests: Requests) -> None:
    requests.before[50] = gone
    play(requests, spacing="poisson", seed=5)
    assert requests.at_s == pytest.approx(poisson(50, 10.0, seed=5), abs=0.001)


def test_a_submit_that_takes_long_delays_no_later_arrival(requests: Requests) -> None:
    def slow() -> None:
        requests.time.ns += int(0.35e9)

    requests.before |= {3: slow, 12: gone}
    play(requests)
    assert requests.at_s[3:8] == pytest.approx([0.65, 0.65, 0.65, 0.65, 0.7], abs=0.001)


def test_it_stops_when_too_many_wait(requests: Requests) -> None:
    requests.scheduled = False
    figures = play(requests).figures()
    assert figures["sent"] == figures["waiting"] == MOST_WAITING
    assert figures["stopped"] == f"{MOST_WAITING} requests were waiting, the limit is {MOST_WAITING}"


def test_it_stops_with_its_tab(requests: Requests) -> None:
    figures = play(requests, lambda: requests.time.ns < 2e9, rate=0.1).figures()
    assert figures["sent"] == 1
    assert figures["stopped"] == "its tab has gone"
    assert figures["seconds"] <= 3, "it does not wait for the next arrival"


def test_it_stops_after_an_hour(requests: Requests) -> None:
    figures = play(requests, rate=0.1).figures()
    assert figures["sent"] == pytest.approx(MOST_S / 10, abs=1)
    assert "60 minutes" in figures["stopped"]


def test_it_can_be_stopped_and_says_nothing_then(requests: Requests) -> None:
    traffic = SteadyTraffic(plan(), requests.send, lambda: True, requests.time)
    requests.before[7] = traffic._stopping.set
    traffic.start()
    traffic.stop()
    for tracked in requests.made[:5]:
        tracked.finished = True
    figures = traffic.figures()
    assert (figures["sent"], figures["done"], figures["on"], figures["stopped"]) == (8, 5, False, None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rate": 0}, "0.1 to 50"),
        ({"rate": 51.0}, "0.1 to 50"),
        ({"rate": True}, "0.1 to 50"),
        ({"rate": float("nan")}, "0.1 to 50"),
        ({"rate": "5"}, "0.1 to 50"),
        ({"spacing": "uniform"}, "poisson or even"),
        ({"kind": "odd"}, "use one of"),
    ],
)
def test_what_cannot_be_is_refused(changes: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**changes)


def test_arrivals_without_end_need_a_rate() -> None:
    with pytest.raises(ValueError, match="above 0"):
        next(endless("even", 0))
