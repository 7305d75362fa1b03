"""The record of a run in a result, from times that were set by hand, and the figures of runs drawn at random."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason
from roseplay.engine.capabilities import Capabilities
from roseplay.engine.records import StepRecord
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import StepEvent
from roseplay.extras.lab.measures import MEASURES, OF_TENANTS, figures
from roseplay.extras.lab.measuring import MeasuredRun, PlayedArm, RunTerms, run_record
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
    run = PlayedArm(engine).run(workload, RunTerms(threading.Event(), 60, keep_cache))
    engine.close()
    assert [(step.prompt_tokens, step.decode_tokens) for step in run.steps] == [(4, 0), (0, 1), (0, 1)]
    assert engine.cleared == (0 if keep_cache else 1)


def test_steps_are_rows() -> None:
    times = {"start_ns": ZERO - 1234 * US, "end_ns": ZERO + 5678 * US + 900}
    work = {"prompt_tokens": 10, "decode_tokens": 4, "running": 3, "waiting": 2, "blocks_active": 6, "blocks_shared": 1}
    record = run_record("A", 1, MeasuredRun.of_played(PLAYED, [StepRecord(0, **times, **work)]))
    assert record["steps"] == [(-1.23, 5.68, 10, 4, 3, 2, 7)]


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


@pytest.mark.parametrize("seed", range(30))
def test_the_figures_of_a_run_drawn_at_random(seed: int) -> None:
    draw = random.Random(seed)
    times = ("ttft_ms", "ttft_from_arrival_ms", "queue_ms", "tpot_ms", "e2e_ms", "submit_ms", "itl_p99_ms")
    requests: list[dict[str, Any]] = [
        {name: draw.choice([None, 10.0, 20.0, 21.0, draw.uniform(1, 90)]) for name in times}
        | {"prompt_tokens": draw.choice([89, 90, 100]), "completion_tokens": draw.randint(0, 9)}
        | draw.choice([{}, {"tenant": "a"}, {"tenant": "b"}])
        for _ in range(draw.randint(1, 9))
    ]
    gaps = [draw.choice([0.0, 3.0, draw.uniform(1, 90)]) for _ in range(draw.randint(0, 30))]
    steps = [[0, 1, draw.randint(0, 9), 1, 1, 1, 1] for _ in range(draw.choice([0, 5]))]
    counts = {"preemptions": 3, "recomputed_tokens": 4, "moved_mb": 0.12345}
    run = {"requests": requests, "itl_ms": gaps, "steps": steps, "seconds": draw.choice([0.0, 0.5, 3.0]),
           "saved_tokens": draw.choice([None, 7]), "saturated": True, **counts}  # fmt: skip

    def at(percent: float, values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(np.percentile(known, percent)) if known else None

    per_second = 1 / run["seconds"] if run["seconds"] else 0
    kept = sum((one["ttft_ms"] or 99) <= 20 and (one["itl_p99_ms"] or 0) <= 20 for one in requests)
    longest = max(one["prompt_tokens"] for one in requests)
    sizes: dict[str, int] = {}
    for one in requests:
        sizes[one.get("tenant", "")] = (
            sizes.get(one.get("tenant", ""), 0) + one["prompt_tokens"] + one["completion_tokens"]
        )
    tenants = sorted(sizes, key=lambda name: (sizes[name], name)) if len(sizes) > 1 else [None]
    computed = sum(step[2] for step in steps)
    if not steps:
        computed = run["saved_tokens"] and sum(one["prompt_tokens"] for one in requests) - run["saved_tokens"]
    expected = {
        "output_tokens_per_s": per_second * sum(one["completion_tokens"] for one in requests),
        "goodput_req_s": per_second * kept,
        "longest_ttft_ms": at(50, (one["ttft_ms"] for one in requests if one["prompt_tokens"] >= 0.9 * longest)),
        "computed_tokens": computed, "saved_tokens": run["saved_tokens"], "mask_ms": None, "mask_wait_ms": None, **counts,
        **{f"itl_p{p}_ms": at(p, (gap or None for gap in gaps)) for p in (50, 95, 99)},
        "itl_max_ms": at(100, (gap or None for gap in gaps)),
        **{f"{name}_p{p}_ms": at(p, (one[f"{name}_ms"] for one in requests)) for name, p in (
            ("ttft", 50), ("ttft", 95), ("ttft", 99), ("ttft_from_arrival", 50), ("ttft_from_arrival", 95), ("queue", 50),
            ("tpot", 50), ("e2e", 95), ("e2e", 99), ("submit", 50),
        )},
    }  # fmt: skip
    limits = {"ttft_ms": 20.0, "itl_ms": 20.0}
    assert {name: measure(run, limits) for name, measure in MEASURES.items()} == pytest.approx(expected)
    queues = [at(50, (one["queue_ms"] for one in requests if one.get("tenant", "") == tenants[end])) for end in (0, -1)]
    assert [measure(run, limits) for measure in OF_TENANTS.values()] == pytest.approx(queues)
    kept_of_point = figures(run, limits)
    assert kept_of_point.pop("saturated") is True
    assert kept_of_point.pop("kept_pct") == pytest.approx(100 * kept / len(requests), abs=1e-4)
    assert kept_of_point.pop("prompt_tokens") == pytest.approx(np.mean([one["prompt_tokens"] for one in requests]))
    assert kept_of_point == pytest.approx({name: expected[name] for name in kept_of_point}, abs=1e-4)
