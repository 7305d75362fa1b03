from __future__ import annotations

import statistics

import pytest

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.traffic.driver import Outcome, Played
from roseplay.traffic.metrics import LATENCIES, Percentiles, measure, percentile
from roseplay.traffic.workload import Arrival
from tests.fake_engine import FakeStream

SECOND = 1_000_000_000


def outcome(
    token_times_s: list[float],
    reason: FinishReason = FinishReason.LENGTH,
    *,
    submitted_s: float = 0.0,
    due_s: float | None = None,
    submit_s: float = 0.0,
    queue_s: float = 0.0,
    prompt_tokens: int = 4,
) -> Outcome:
    start = round(submitted_s * SECOND)
    stream = FakeStream(0, [0] * prompt_tokens, SamplingParams(), submitted_ns=start)
    stream.metrics.scheduled_ns = start + round(queue_s * SECOND)
    stream.finish(token_times_s, reason)
    due = start if due_s is None else round(due_s * SECOND)
    return Outcome(Arrival(0.0, "x", SamplingParams()), stream, due, start, start + round(submit_s * SECOND))


def refused() -> Outcome:
    return Outcome(Arrival(0.0, "x", SamplingParams()), None, 0, 0, 9 * SECOND, refused="too long")


def test_percentiles_lie_between_neighbours() -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    assert percentile(values, 0) == 1
    assert percentile(values, 50) == statistics.median(values) == 2.5
    assert percentile(values, 95) == pytest.approx(3.85)
    assert percentile(values, 100) == 4
    assert percentile([7.0], 99) == 7
    assert percentile([], 50) is None
    with pytest.raises(ValueError):
        percentile(values, 101)


def test_times_are_in_milliseconds_and_undefined_ones_left_out() -> None:
    assert Percentiles.of_seconds([0.003, None, 0.001]).p50 == pytest.approx(2.0)
    assert Percentiles.of_seconds([None]) == Percentiles(None, None, None)


def test_the_definitions() -> None:
    first = outcome([0.5, 0.6, 0.9], submitted_s=10.0, submit_s=0.001, queue_s=0.2)
    metrics = measure(Played([first, outcome([1.0], submitted_s=10.5)]))
    assert metrics.ttft.p50 == pytest.approx(750)
    assert metrics.tpot.p50 == pytest.approx(200)  # from the first request alone: (0.9 - 0.5) / 2
    assert metrics.itl.p50 == pytest.approx(200)  # gaps of 100 and 300
    assert metrics.itl.p99 == pytest.approx(298)
    assert metrics.e2e.p50 == pytest.approx(950)
    assert metrics.queue.p50 == pytest.approx(100)
    assert metrics.submit.p50 == pytest.approx(0.5)
    assert metrics.wall_s == pytest.approx(1.5)  # from the first submit at 10.0 to the last end at 11.5
    assert metrics.submit_wall_s == pytest.approx(0.5)
    assert (metrics.prompt_tokens, metrics.completion_tokens) == (8, 4)
    assert metrics.output_tokens_per_s == pytest.approx(4 / 1.5)


def test_the_first_token_is_counted_from_the_intended_arrival_too() -> None:
    late = outcome([0.5], submitted_s=10.0, due_s=8.0)
    metrics = measure(Played([late, refused(), outcome([9.0], FinishReason.ABORT)]))
    assert metrics.ttft.p50 == pytest.approx(500)
    assert metrics.ttft_from_arrival.p50 == pytest.approx(2500)


def test_gaps_are_pooled_so_a_long_answer_weighs_more_than_a_short_one() -> None:
    long = outcome([0.1 * (number + 1) for number in range(100)])
    short = outcome([0.1, 5.1])
    metrics = measure(Played([long, short]))
    assert metrics.itl.p50 == pytest.approx(100)  # 99 gaps of 0.1 s against one of 5 s
    assert metrics.tpot.p50 == pytest.approx(2550)  # one value per request


def test_answers_of_one_token_and_of_none() -> None:
    metrics = measure(Played([outcome([0.2]), outcome([], FinishReason.STOP)]))
    assert metrics.completed == 2
    assert metrics.tpot == Percentiles(None, None, None)
    assert metrics.itl == Percentiles(None, None, None)
    assert metrics.ttft.p50 == pytest.approx(200)
    assert metrics.completion_tokens == 1


def test_aborted_failed_and_refused_are_counted_apart() -> None:
    aborted, failed = outcome([7.0, 90.0], FinishReason.ABORT), outcome([8.0, 90.0], FinishReason.ERROR)
    metrics = measure(Played([outcome([0.1, 0.2]), aborted, failed, refused()]))
    assert (metrics.requests, metrics.completed) == (4, 1)
    assert (metrics.aborted, metrics.failed, metrics.refused) == (1, 1, 1)
    assert metrics.ttft.p99 == pytest.approx(100)
    assert metrics.itl.p99 == pytest.approx(100)
    assert metrics.e2e.p99 == pytest.approx(200)
    assert (metrics.prompt_tokens, metrics.completion_tokens) == (4, 2)
    assert metrics.submit.p99 == 0  # a refusal's time does not count as submit latency
    assert metrics.wall_s == pytest.approx(0.2)


def test_nothing_played_has_no_figures_and_divides_by_nothing() -> None:
    metrics = measure(Played())
    assert (metrics.requests, metrics.output_tokens_per_s, metrics.wall_s) == (0, 0.0, 0.0)
    assert set(metrics.latencies_ms()) == {f"{name}_ms" for name in LATENCIES}
    assert metrics.latencies_ms()["itl_ms"] == {"p50": None, "p95": None, "p99": None}
