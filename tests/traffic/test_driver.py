from __future__ import annotations

import threading
import time

import pytest

from roseplay.clock import VirtualClock
from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.errors import EngineBusyError
from roseplay.traffic.arrivals import burst, fixed_interval
from roseplay.traffic.driver import MAX_REQUESTS, Driver
from roseplay.traffic.prompts import TextPrompts
from roseplay.traffic.workload import Arrival, make_workload
from tests.fake_engine import FakeEngine, FakeStream
from tests.waiting import wait_until


def workload(times_s: list[float]):
    return make_workload(TextPrompts("x"), times_s, params=SamplingParams(max_new_tokens=2))


def never(stream: FakeStream) -> None:
    """An answer that never comes."""


def test_every_arrival_is_sent_in_order_with_its_prompt_and_params() -> None:
    engine = FakeEngine()
    sent = workload(burst(5))
    played = Driver(engine, sent).run()
    assert [outcome.arrival for outcome in played.outcomes] == sent
    assert engine.prompts == [arrival.prompt for arrival in sent]
    assert [stream.params for stream in engine.streams] == [arrival.params for arrival in sent]
    assert all(outcome.stream.finish_reason is FinishReason.LENGTH for outcome in played.outcomes)
    assert (played.not_sent, played.stopped) == (0, None)


def test_arrivals_keep_their_times() -> None:
    played = Driver(FakeEngine(clock=VirtualClock(5)), workload(fixed_interval(4, 0.7))).run()
    assert [outcome.due_ns for outcome in played.outcomes] == [5, 700_000_005, 1_400_000_005, 2_100_000_005]
    assert all(outcome.submit_start_ns == outcome.due_ns for outcome in played.outcomes)
    assert played.submit_wall_s == 2.1


def test_a_call_that_returns_late_delays_the_next_ones_but_not_their_intended_arrival() -> None:
    class Blocking(FakeEngine):
        """``submit`` returns only once the prompt is computed, as with blocking admission."""

        def submit(self, *request):
            clock.advance_to(clock.now_ns() + 30)
            return super().submit(*request)

    clock = VirtualClock()
    outcomes = Driver(Blocking(clock=clock), workload([0.0, 0.0, 10e-9])).run().outcomes
    assert [(one.due_ns, one.submit_start_ns, one.submit_end_ns) for one in outcomes] == [
        (0, 0, 30), (0, 30, 60), (10, 60, 90),
    ]  # fmt: skip
    ttft_s = outcomes[2].stream.metrics.ttft_s
    assert outcomes[2].ttft_from_arrival_s == pytest.approx(80e-9 + ttft_s)


def test_traffic_does_not_wait_for_answers() -> None:
    engine = FakeEngine(answer=never)
    driver = Driver(engine, workload(burst(3)))
    playing = driver.start()
    wait_until(lambda: len(engine.streams) == 3)
    with pytest.raises(TimeoutError):
        playing.result(0.01)
    for stream in engine.streams:
        stream.finish([0.1])
    assert playing.result(5).stopped is None


def test_each_client_sends_when_it_is_answered() -> None:
    engine = FakeEngine(answer=never)
    playing = Driver(engine, workload(burst(5)), clients=2).start()
    for sent in (2, 3, 4, 5):
        wait_until(lambda count=sent: len(engine.streams) == count)
        assert len([stream for stream in engine.streams if not stream.finished]) == 2
        if sent < 5:
            engine.streams[sent - 2].finish([0.1])
    for stream in engine.streams:
        stream.finish([0.1])
    outcomes = playing.result(5).outcomes
    assert [outcome.arrival.at_s for outcome in outcomes] == [0.0] * 5
    dues = [outcome.due_ns for outcome in outcomes]
    assert dues == sorted(dues) and dues[4] > dues[0], "due when sent, and not at the beginning"


def test_a_stop_aborts_what_runs_and_sends_nothing_more() -> None:
    engine = FakeEngine(answer=never)
    driver = Driver(engine, workload([0.0, 0.0, 60.0]))
    playing = driver.start()
    wait_until(lambda: len(engine.streams) == 2)
    driver.stop()
    driver.stop()
    played = playing.result(5)
    assert (len(played.outcomes), played.not_sent, played.stopped) == (2, 1, "stopped")
    assert [stream.finish_reason for stream in engine.streams] == [FinishReason.ABORT] * 2


def test_the_time_limit_ends_it_while_sending() -> None:
    played = Driver(FakeEngine(clock=VirtualClock()), workload([0.0, 60.0]), time_limit_s=5.0).run()
    assert (len(played.outcomes), played.not_sent, played.stopped) == (1, 1, "time limit")


def test_the_time_limit_ends_it_while_waiting() -> None:
    engine = FakeEngine(answer=never)
    started = time.monotonic()
    played = Driver(engine, workload(burst(2)), time_limit_s=0.05).run()
    assert time.monotonic() - started < 5
    assert played.stopped == "time limit"
    assert [stream.finish_reason for stream in engine.streams] == [FinishReason.ABORT] * 2


@pytest.mark.parametrize("error", [ValueError("too long"), EngineBusyError("queue is full")])
def test_a_refused_request_is_told_and_the_rest_goes_on(error: Exception) -> None:
    def refuse_the_second(stream: FakeStream) -> None:
        if stream.request_id == 1:
            raise error
        stream.finish([0.1])

    played = Driver(FakeEngine(answer=refuse_the_second), workload(burst(3))).run()
    assert [outcome.refused for outcome in played.outcomes] == [None, str(error), None]
    assert played.outcomes[1].stream is None


def test_a_broken_engine_is_told_to_whoever_waits() -> None:
    def broken(stream: FakeStream) -> None:
        raise OSError("the engine is gone")

    driver = Driver(FakeEngine(answer=broken), workload(burst(1)))
    with pytest.raises(OSError, match="gone"):
        driver.start().result(5)


def test_each_outcome_is_told_as_it_is_sent() -> None:
    told: list[tuple[int, str]] = []
    driver = Driver(
        FakeEngine(),
        workload(burst(3)),
        on_sent=lambda outcome: told.append((outcome.stream.request_id, threading.current_thread().name)),
    )
    driver.start().result(5)
    assert told == [(number, "roseplay-traffic") for number in range(3)]


def test_a_workload_must_be_bounded_and_in_order() -> None:
    late, early = Arrival(1.0, "x", SamplingParams()), Arrival(0.5, "x", SamplingParams())
    for bad in ([], [early] * (MAX_REQUESTS + 1), [late, early]):
        with pytest.raises(ValueError):
            Driver(FakeEngine(), bad)
    with pytest.raises(ValueError):
        Driver(FakeEngine(), [early], time_limit_s=0)
