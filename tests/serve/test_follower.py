"""A follower of an engine's telemetry passes each event on once, even beside a consumer that fails."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from roseplay.engine.errors import EngineError
from roseplay.engine.telemetry import Load, LoadEvent, Telemetry, TelemetryEvent, TokenEvent, TokensEvent
from roseplay.serve.follower import Follower
from roseplay.serve.metrics import Metrics
from roseplay.serve.monitor import log_request
from tests.play.fake_engine import INFO


def test_another_engine_in_the_place_of_one_that_has_ended() -> None:
    first, second, taken = Telemetry(capacity=10), Telemetry(capacity=10), list[object]()

    class Followed:
        telemetry: Telemetry | None = first
        ends = False

        @property
        def engine(self) -> SimpleNamespace:
            if self.telemetry is second and not self.ends:
                self.ends = True
                first.add(LoadEvent(30))  # the last event of the first one, added while its place is taken
            if self.telemetry is None:
                raise EngineError("it is starting")
            return SimpleNamespace(telemetry=self.telemetry)

    followed = Followed()
    follower = Follower(
        lambda: followed.engine,
        lambda event: taken.append(event.time_ns),
        begin=lambda engine: taken.append(engine.telemetry),
    )
    first.add(LoadEvent(1))
    follower.catch_up()
    first.add(LoadEvent(2))
    followed.telemetry = None
    with pytest.raises(EngineError):
        follower.catch_up()
    first.add(LoadEvent(3))
    followed.telemetry = second
    second.add(LoadEvent(4))
    follower.catch_up()
    follower.catch_up()
    assert taken == [first, 1, 2, 3, 30, second, 4]


def test_what_comes_just_before_the_end_is_followed() -> None:
    telemetry, taken = Telemetry(10), list[int]()
    engine = SimpleNamespace(telemetry=telemetry)
    # It reads only when it is closed.
    follower = Follower(lambda: engine, lambda event: taken.append(event.time_ns), every_s=60.0)
    follower.start()
    telemetry.add(LoadEvent(5))
    follower.close()
    assert taken == [5]


def test_a_taker_that_fails_costs_nobody_an_event(caplog: pytest.LogCaptureFixture) -> None:
    telemetry, taken, tried = Telemetry(capacity=10), list[int](), list[int]()

    def fail(event: LoadEvent) -> None:
        tried.append(event.time_ns)
        raise KeyError("a bug")

    follower = Follower(lambda: SimpleNamespace(telemetry=telemetry), fail, lambda event: taken.append(event.time_ns))
    for time_ns in range(5):
        telemetry.add(LoadEvent(time_ns))
    with caplog.at_level(logging.ERROR):
        follower.catch_up()
        telemetry.add(LoadEvent(5))
        follower.catch_up()
    assert taken == tried == list(range(6))
    assert [record.exc_info is not None for record in caplog.records] == [True]  # logged once, with a traceback


@pytest.mark.parametrize("event", [TokensEvent([TokenEvent(1, -1, 5, None)]), LoadEvent(5, Load(running=3))])
def test_readers_leave_out_the_events_of_a_servers_client(event: TelemetryEvent) -> None:
    Metrics(INFO).take(event)
    log_request(event)
