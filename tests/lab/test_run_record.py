"""The record of a run in a result, from times that were set by hand."""

from __future__ import annotations

import dataclasses
import threading

import pytest

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.records import StepRecord
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import StepEvent
from roseplay.lab.measuring import MeasuredRun, PlayedArm, run_record
from roseplay.traffic.driver import Outcome, Played
from roseplay.traffic.workload import Arrival
from tests.play.fake_engine import FakeEngine

US = 1000
ZERO = 5_000_000 * US  # ns; times below are in µs after it


def outcome(begin: int, tokens: tuple[int, ...], end: int, *, due: int, **counts: int) -> Outcome:
    stream: Stream = FakeEngine().submit([1, 2, 3], SamplingParams(max_new_tokens=8))
    metrics = stream.metrics
    metrics.submitted_ns, metrics.scheduled_ns = ZERO + begin * US, ZERO + (begin + 250) * US
    for at in tokens:
        metrics.took(ZERO + at * US)
    for name, count in counts.items():
        setattr(metrics, name, count)
    stream.finish(FinishReason.LENGTH, ZERO + end * US)
    arrival = Arrival(due / 1e6, [1], SamplingParams())
    return Outcome(arrival, stream, ZERO + due * US, ZERO + begin * US, ZERO + (begin + 42) * US)


PLAYED = Played(
    [
        outcome(0, (1234, 3579, 13_590), 13_600, due=-100, cached_tokens=5, num_preemptions=2),
        outcome(2000, (4000,), 25_000, due=1900, cached_tokens=1, shared_tokens=3),
    ]
)


def test_times_are_milliseconds_since_the_first_submit() -> None:
    record = run_record("B", 3, MeasuredRun.of_played(PLAYED, []))
    assert (record["arm"], record["repeat"], record["seconds"], record["steps"]) == ("B", 3, 0.025, [])
    assert record["itl_ms"] == [2.35, 10.01]
    assert (record["saved_tokens"], record["preemptions"]) == (9, 2)
    first, second = record["requests"]
    assert first == {
        "index": 0,
        "arrival_ms": 0.0,
        "intended_arrival_ms": -0.1,
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "submit_ms": 0.042,
        "queue_ms": 0.25,
        "ttft_ms": 1.23,
        "ttft_from_arrival_ms": 1.33,
        "tpot_ms": 6.18,
        "e2e_ms": 13.6,
        "itl_p99_ms": 9.93,
        "itl_max_ms": 10.01,
        "reason": "length",
    }
    assert (second["index"], second["arrival_ms"], second["ttft_ms"], second["e2e_ms"]) == (1, 2.0, 2.0, 23.0)
    assert (second["tpot_ms"], second["itl_p99_ms"], second["itl_max_ms"]) == (None, None, None)


def test_every_token_but_the_first_has_a_gap_even_if_it_is_none() -> None:
    played = Played([outcome(0, (1000, 1000, 3000), 3000, due=0)])
    assert run_record("A", 1, MeasuredRun.of_played(played, []))["itl_ms"] == [0.0, 2.0]


class Idling(FakeEngine):
    """Also records steps in which it only waits, and counts how often its cache was cleared."""

    cleared = 0

    def _step(self, live: list[Stream]) -> None:
        self.telemetry.add(StepEvent(self._record(self.clock.now_ns(), [], 0, 0), []))
        super()._step(live)

    def clear_cache(self) -> None:
        self.cleared += 1


@pytest.mark.parametrize("keep_cache", [False, True])
def test_a_run_has_the_steps_that_did_any_work_and_starts_cold_unless_told_otherwise(keep_cache: bool) -> None:
    engine = Idling(run=True, step_s=0.001)
    workload = [Arrival(0.0, [1] * 4, SamplingParams(max_new_tokens=3))]
    run = PlayedArm(engine).run(workload, stop=threading.Event(), time_limit_s=60, keep_cache=keep_cache)
    engine.close()
    assert [(step.prompt_tokens, step.decode_tokens) for step in run.steps] == [(4, 0), (0, 1), (0, 1)]
    assert engine.cleared == (0 if keep_cache else 1)


def test_steps_are_rows() -> None:
    times = {"start_ns": ZERO - 1234 * US, "end_ns": ZERO + 5678 * US + 900}
    work = {"prompt_tokens": 10, "decode_tokens": 4, "running": 3, "waiting": 2, "blocks_active": 6, "blocks_shared": 1}
    record = run_record("A", 1, MeasuredRun.of_played(PLAYED, [StepRecord(0, **times, **work)]))
    assert record["steps"] == [[-1.23, 5.68, 10, 4, 3, 2, 7]]


def test_what_the_engine_does_not_report_is_unknown() -> None:
    told = Capabilities.without({"cached_tokens": "it does not say", "steps": "nor this"})
    record = run_record("A", 1, MeasuredRun.of_played(PLAYED, []), told)
    assert (record["saved_tokens"], record["preemptions"]) == (None, None)


def test_what_preemptions_cost_is_known_of_an_engine_that_reports_steps_and_the_size_of_a_block() -> None:
    run = dataclasses.replace(MeasuredRun.of_played(PLAYED, []), recomputed_tokens=5, moved_blocks=3)
    told = Capabilities.without({"steps": "it does not say"})
    costs = [run_record("A", 1, run), run_record("A", 1, run, told, 2000), run_record("A", 1, run, None, 2000)]
    assert [(cost["recomputed_tokens"], cost["moved_mb"]) for cost in costs] == [(None, None), (None, None), (5, 0.006)]


def test_masks_are_medians_of_the_steps_that_had_some() -> None:
    steps = [
        StepRecord(n, start_ns=0, end_ns=1, mask_ms=took, mask_wait_ms=took / 2) for n, took in enumerate((0, 2, 4))
    ]
    record = run_record("A", 1, MeasuredRun.of_played(PLAYED, steps))
    assert (record["mask_ms"], record["mask_wait_ms"]) == (3, 1.5)
    assert "mask_ms" not in run_record("A", 1, MeasuredRun.of_played(PLAYED, steps[:1]))


def test_the_same_tokens_have_the_same_digest() -> None:
    def digest(*token_ids: list[int]) -> str:
        for one, ids in zip(PLAYED.outcomes, token_ids, strict=True):
            one.stream.token_ids[:] = ids
        return str(run_record("A", 1, MeasuredRun.of_played(PLAYED, []))["tokens_sha256"])

    assert digest([1, 2], [3]) == digest([1, 2], [3])
    assert len({digest([1, 2], [3]), digest([1], [2, 3]), digest([1, 2], [4])}) == 3
