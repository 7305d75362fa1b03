from __future__ import annotations

import threading
import time

import pytest

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.errors import EngineBusyError
from roseplay.traffic.arrivals import burst, fixed_interval
from roseplay.traffic.driver import MAX_REQUESTS, Driver
from roseplay.traffic.prompts import TextPrompts
from roseplay.traffic.workload import Arrival, make_workload
from tests.fake_engine import FakeEngine, FakeStream


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
    started = time.perf_counter_ns()
    played = Driver(FakeEngine(), workload(fixed_interval(4, 0.03))).run()
    for outcome in played.outcomes:
        assert (outcome.submit_start_ns - started) / 1e9 >= outcome.arrival.at_s - 0.001
    assert 0.085 < played.submit_wall_s < 1.0


def test_a_call_that_returns_late_delays_the_next_ones_but_not_their_intended_arrival() -> None:
    class Blocking(FakeEngine):
        """``submit`` returns only once the prompt is computed, as with blocking admission."""

        def submit(self, *request):
            time.sleep(0.03)
            return super().submit(*request)

    first, second, third = Driver(Blocking(), workload([0.0, 0.0, 0.01])).run().outcomes
    assert second.due_ns == first.due_ns <= first.submit_start_ns
    assert third.due_ns - first.due_ns == 10_000_000
    for earlier, later in ((first, second), (second, third)):
        assert later.submit_start_ns >= earlier.submit_end_ns
        waited_s = (later.submit_start_ns - later.due_ns) / 1e9
        assert waited_s > 0.01
        assert later.ttft_from_arrival_s > waited_s + later.stream.metrics.ttft_s


def test_traffic_does_not_wait_for_answers() -> None:
    engine = FakeEngine(answer=never)
    driver = Driver(engine, workload(burst(3)))
    driver.start()
    deadline = time.monotonic() + 5
    while len(engine.streams) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(engine.streams) == 3
    with pytest.raises(TimeoutError):
        driver.wait(0.01)
    for stream in engine.streams:
        stream.finish([0.1])
    assert driver.wait(5).stopped is None


def test_a_stop_aborts_what_runs_and_sends_nothing_more() -> None:
    engine = FakeEngine(answer=never)
    driver = Driver(engine, workload([0.0, 0.0, 60.0]))
    driver.start()
    while len(engine.streams) < 2:
        time.sleep(0.005)
    driver.stop()
    driver.stop()
    played = driver.wait(5)
    assert (len(played.outcomes), played.not_sent, played.stopped) == (2, 1, "stopped")
    assert [stream.finish_reason for stream in engine.streams] == [FinishReason.ABORT] * 2


def test_the_time_limit_ends_it_while_sending() -> None:
    played = Driver(FakeEngine(), workload([0.0, 60.0]), time_limit_s=0.05).run()
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
    driver.start()
    with pytest.raises(OSError, match="gone"):
        driver.wait(5)


def test_each_outcome_is_told_as_it_is_sent() -> None:
    told: list[tuple[int, str]] = []
    driver = Driver(
        FakeEngine(),
        workload(burst(3)),
        on_sent=lambda outcome: told.append((outcome.stream.request_id, threading.current_thread().name)),
    )
    driver.start()
    driver.wait(5)
    assert told == [(number, "roseplay-traffic") for number in range(3)]


def test_a_workload_must_be_bounded_and_in_order() -> None:
    late, early = Arrival(1.0, "x", SamplingParams()), Arrival(0.5, "x", SamplingParams())
    for bad in ([], [early] * (MAX_REQUESTS + 1), [late, early]):
        with pytest.raises(ValueError):
            Driver(FakeEngine(), bad)
    with pytest.raises(ValueError):
        Driver(FakeEngine(), [early], time_limit_s=0)


def test_it_is_played_once_and_waited_for_after_its_start() -> None:
    driver = Driver(FakeEngine(), workload(burst(1)))
    with pytest.raises(RuntimeError):
        driver.wait()
    driver.start()
    with pytest.raises(RuntimeError):
        driver.start()
    driver.wait(5)
