"""Steady traffic: open loop, seeded, and stopped automatically if need be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from roseplay.clock import VirtualClock
from roseplay.engine.errors import EngineBusyError
from roseplay.play.open_loop import MOST_WAITING, OpenLoop
from roseplay.play.playground import Playground
from roseplay.play.session import LEASE_S, Tabs
from roseplay.play.steady import MOST_S, SteadyPlan, SteadyTraffic
from roseplay.traffic.arrivals import endless, poisson
from roseplay.traffic.own import OwnRequest, to_jsonl
from tests.play.conftest import Seconds, poll
from tests.play.fake_engine import INFO, FakeEngine
from tests.waiting import wait_until

MINE, YOURS = "tab-of-mine", "tab-of-yours"
ENDLESS = [OwnRequest(0.0, 4, 3), OwnRequest(0.0, "Why is that?", 5), OwnRequest(600.0, 4, 3)]


class Requests:
    """What was sent and when; ``before`` are functions that are called before the requests with these numbers."""

    def __init__(self) -> None:
        self.time, self.scheduled = VirtualClock(), True
        self.at_s: list[float] = []
        self.made: list[Any] = []
        self.before: dict[int, Any] = {}

    def send(self, index: int, due_ns: int) -> Any:
        assert index == len(self.made)
        self.before.get(index, lambda: None)()
        self.at_s.append(self.time.now_ns() / 1e9)
        metrics = SimpleNamespace(scheduled_ns=1 if self.scheduled else None, first_token_ns=None)
        stream = SimpleNamespace(metrics=metrics, cancelled=False)
        stream.cancel = lambda: setattr(stream, "cancelled", True)
        self.made.append(SimpleNamespace(finished=False, stream=stream))
        return self.made[-1]


def plan(**changes: Any) -> SteadyPlan:
    return SteadyPlan(**{"rate": 10.0, "spacing": "even", "kind": "unique", "max_new_tokens": 3, "seed": 3, **changes})


def to_its_end(traffic: OpenLoop) -> OpenLoop:
    traffic.start()
    traffic.join(20)
    assert not traffic.running
    return traffic


def steady_of(requests: Requests, watched: Any = lambda: True, **changes: Any) -> SteadyTraffic:
    return SteadyTraffic(plan(**changes), requests.send, watched, requests.time)


def play(requests: Requests, watched: Any = lambda: True, **changes: Any) -> OpenLoop:
    return to_its_end(steady_of(requests, watched, **changes))


def gone() -> None:
    raise EngineBusyError("256 requests are already waiting")


@pytest.fixture
def requests() -> Requests:
    return Requests()


def test_requests_arrive_at_the_rate_whether_or_not_others_are_answered(requests: Requests) -> None:
    requests.before[25] = gone
    figures = play(requests).figures()
    assert requests.at_s == pytest.approx([i / 10 for i in range(25)], abs=0.001)
    assert (figures["sent"], figures["done"], figures["on"]) == (25, 0, False)
    assert figures["stopped"] == "256 requests are already waiting"


def test_poisson_gaps_come_from_the_seed(requests: Requests) -> None:
    requests.before[50] = gone
    play(requests, spacing="poisson", seed=5)
    assert requests.at_s == pytest.approx(poisson(50, 10.0, seed=5), abs=0.001)


def test_a_changed_rate_applies_from_now_on(requests: Requests) -> None:
    traffic = steady_of(requests, rate=0.5)
    requests.before |= {2: lambda: traffic.change(plan(rate=10.0), requests.send), 6: gone}
    to_its_end(traffic)
    assert requests.at_s == pytest.approx([0, 2, 4, 4.1, 4.2, 4.3], abs=0.001)


def test_a_change_goes_on_with_the_gaps_of_the_seed(requests: Requests) -> None:
    traffic = steady_of(requests, spacing="poisson")
    requests.before |= {20: lambda: traffic.change(plan(spacing="poisson", rate=5.0), requests.send), 40: gone}
    to_its_end(traffic)
    slow = poisson(40, 5.0, seed=3)
    begun = poisson(21, 10.0, seed=3)[20]
    assert requests.at_s[20:] == pytest.approx([begun + at - slow[20] for at in slow[20:]], abs=0.01)


def test_it_stops_when_too_many_wait(requests: Requests) -> None:
    requests.scheduled = False
    figures = play(requests).figures()
    assert figures["sent"] == figures["waiting"] == MOST_WAITING
    assert figures["stopped"] == f"{MOST_WAITING} requests were waiting, the limit is {MOST_WAITING}"


def test_it_stops_with_its_tab(requests: Requests) -> None:
    figures = play(requests, lambda: requests.time.now_ns() < 2e9, rate=0.1).figures()
    assert figures["sent"] == 1
    assert figures["stopped"] == "its tab has gone"
    assert figures["seconds"] <= 3, "it does not wait for the next arrival"


def test_it_stops_after_an_hour(requests: Requests) -> None:
    figures = play(requests, rate=0.1).figures()
    assert figures["sent"] == pytest.approx(MOST_S / 10, abs=1)
    assert "60 minutes" in figures["stopped"]


def test_it_can_be_stopped_and_says_nothing_then(requests: Requests) -> None:
    traffic = steady_of(requests)
    requests.before[7] = traffic.stop
    to_its_end(traffic)
    for tracked in requests.made[:5]:
        tracked.finished = True
    figures = traffic.figures()
    assert (figures["sent"], figures["done"], figures["on"], figures["stopped"]) == (8, 5, False, None)


def test_a_request_that_is_being_submitted_when_all_is_stopped_is_aborted(requests: Requests) -> None:
    traffic = steady_of(requests)
    requests.before[3] = lambda: traffic.stop(abort=True)
    to_its_end(traffic)
    assert [tracked.stream.cancelled for tracked in requests.made] == [False, False, False, True]


PLAN = {"rate": 50.0, "spacing": "even", "kind": "equal", "max_new_tokens": 3, "seed": 5}


@pytest.fixture
def begun(engine: FakeEngine, playground: Playground) -> Playground:
    """Steady traffic of a tab, three requests of which have arrived."""
    playground.traffic.start_steady(**PLAN, tab_id=MINE)
    wait_until(lambda: len(engine.streams) >= 3)
    return playground


def steady(playground: Playground) -> Any:
    return poll(playground, tab_id=MINE)["own"]["steady"]


def test_a_tab_learns_of_its_steady_traffic_by_its_polls(begun: Playground) -> None:
    now = steady(begun)
    assert (now["on"], now["rate"], now["kind"], now["spacing"], now["seed"]) == (True, 50.0, "equal", "even", 5)
    assert now["sent"] >= 2
    begun.tick()
    events = [event for frame in poll(begun)["frames"] for event in frame["requests"]]
    assert {about["kind"] for _, kind, _, about in events if kind == "submitted"} == {"steady"}
    assert "steady" not in poll(begun, tab_id=YOURS)["own"]


def test_stopping_a_lane_leaves_it(begun: Playground) -> None:
    begun.stop(tab_id=MINE, lane=1)
    sent = steady(begun)["sent"]
    assert wait_until(lambda: steady(begun)["sent"] > sent)


def test_another_takes_its_place(begun: Playground) -> None:
    before = begun.tabs.open(MINE).traffic["steady"]
    begun.traffic.start_steady(**{**PLAN, "rate": 1, "kind": "mix", "seed": 9}, tab_id=MINE)
    wait_until(lambda: before is not None and not before.running)
    assert (steady(begun)["kind"], steady(begun)["seed"], steady(begun)["on"]) == ("mix", 9, True)


def test_without_a_seed_it_goes_on_under_the_new_plan(begun: Playground, engine: FakeEngine) -> None:
    sent = len(engine.streams)
    begun.traffic.start_steady(**{**PLAN, "rate": 40, "kind": "unique", "max_new_tokens": 5, "seed": None}, tab_id=MINE)
    wait_until(lambda: len(engine.streams) > sent + 3)
    now = steady(begun)
    assert (now["kind"], now["rate"], now["max_new_tokens"], now["seed"], now["on"]) == ("unique", 40, 5, 5, True)
    assert now["sent"] >= sent + 3, "the count continues"
    assert list(engine.streams.values())[-1].params.max_new_tokens == 5


def test_once_stopped_it_does_not_run(begun: Playground) -> None:
    begun.traffic.stop("steady", MINE)
    assert steady(begun)["on"] is False


# -- also for traffic from a file

BEGIN = {
    "steady": lambda traffic: traffic.start_steady(**PLAN, tab_id=MINE),
    "file": lambda traffic: traffic.start_own(to_jsonl(ENDLESS), tab_id=MINE),
}


@pytest.mark.parametrize(("kind", "tab"), [("steady", MINE), ("steady", ""), ("file", MINE)])
def test_stop_all_ends_it(engine: FakeEngine, playground: Playground, kind: str, tab: str) -> None:
    BEGIN[kind](playground.traffic)
    wait_until(lambda: len(engine.streams) >= 2)
    playground.stop(tab_id=tab)
    wait_until(lambda: not poll(playground, tab_id=MINE)["own"][kind]["on"])
    engine.step()
    assert {str(stream.finish_reason) for stream in engine.streams.values()} == {"abort"}


@pytest.mark.parametrize("kind", BEGIN)
def test_it_ends_with_the_lease_of_its_tab(engine: FakeEngine, kind: str) -> None:
    time = Seconds()
    playground = Playground(engine, tabs=Tabs(clock=time))
    traffic = BEGIN[kind](playground.traffic)
    wait_until(lambda: traffic.figures()["sent"] >= 2)
    time.now = LEASE_S + 1
    playground.tick()
    wait_until(lambda: traffic.figures()["stopped"] == "its tab has gone")
    engine.step()
    assert all(stream.finished for stream in engine.streams.values())


@pytest.mark.parametrize(
    ("changes", "said"), [({"max_new_tokens": INFO.max_model_len}, "limit"), ({"tab_id": ""}, "id of a tab")]
)
def test_what_cannot_begin_is_refused(playground: Playground, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        playground.traffic.start_steady(**{**PLAN, "tab_id": MINE, **changes})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rate": 0}, "0.1 to 50"),
        ({"rate": 51.0}, "0.1 to 50"),
        ({"rate": float("nan")}, "0.1 to 50"),
        ({"kind": "odd"}, "use one of"),
    ],
)
def test_what_cannot_be_is_refused(changes: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        plan(**changes)


def test_arrivals_without_end_need_a_rate() -> None:
    with pytest.raises(ValueError, match="above 0"):
        next(endless("even", 0))
