"""The parts of a time to first token: their causes, and that they add up to it."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.engine.client import Engine
from roseplay.engine.records import EntryRecord, StepRecord
from roseplay.engine.ttft_causes import CauseCounter

MS = 1_000_000
SHORT = SamplingParams(max_new_tokens=4, ignore_eos=True)
LONG = SamplingParams(max_new_tokens=20, ignore_eos=True)


def step(start_ms: int, end_ms: int, *prompts: int, held_by: str | None = None, **more: Any) -> StepRecord:
    """A step that works on the prompts of these requests, and decodes for request 9."""
    entries = [EntryRecord(9, 0, 1, 4, 4, 0, 0), *(EntryRecord(rid, 4, 0, 4, 8, 0, 0) for rid in prompts)]
    return StepRecord(0, start_ns=start_ms * MS, end_ns=end_ms * MS, entries=entries, held_by=held_by, **more)


def parts_ms(counter: CauseCounter, request_id: int, ttft_ms: int) -> list[float]:
    causes = counter.first_token(request_id, ttft_ms / 1e3)
    assert causes is not None
    assert sum(causes) == pytest.approx(ttft_ms / 1e3)
    return [round(part * 1e3, 6) for part in causes]


def test_each_wait_is_counted_by_what_held_its_step_back() -> None:
    counter = CauseCounter()
    counter.take(step(0, 10))
    counter.submitted(1, 12 * MS)
    counter.take(step(10, 20))  # in progress when it arrived
    counter.take(step(20, 25, held_by="batch"))
    counter.take(step(25, 32, held_by="blocks"))
    counter.take(step(32, 43, held_by="prefill"))
    counter.take(step(43, 60, 1, held_by="prefill"))  # a part of its prompt
    counter.take(step(60, 63, 2, held_by="prefill"))  # only another's
    counter.take(step(63, 70, 1))
    assert parts_ms(counter, 1, 59) == [8 + 5, 7, 11 + 3, 17 + 7 + 1]


@pytest.mark.parametrize("held_by", [None, "blocks", "prefill", "interval"])
def test_the_step_in_progress_at_its_arrival_counts_as_queue(held_by: str | None) -> None:
    """What held others back in that step is not what this request waits for: it was not there yet."""
    counter = CauseCounter()
    counter.submitted(1, 12 * MS)
    counter.take(step(10, 20, held_by=held_by))
    counter.take(step(20, 30, 1))
    assert parts_ms(counter, 1, 18) == [8, 0, 0, 10]


def test_the_time_between_steps_belongs_to_the_later_one() -> None:
    counter = CauseCounter()
    counter.submitted(1, 0)
    counter.take(step(0, 10, held_by="batch"))
    counter.take(step(12, 20, held_by="blocks"))
    counter.take(step(25, 30, held_by="interval"))
    counter.take(step(31, 40, held_by="prefill"))
    counter.take(step(43, 50, 1))
    assert parts_ms(counter, 1, 50) == [10, 10, 20, 10]


def test_a_request_that_enters_at_once_only_computes() -> None:
    counter = CauseCounter()
    counter.submitted(1, 5 * MS)
    counter.take(step(6, 20, 1, held_by="blocks"))  # that held others back
    assert parts_ms(counter, 1, 15) == [1, 0, 0, 14]


def test_one_that_is_left_out_of_the_first_step_waits_for_what_kept_it_out() -> None:
    counter = CauseCounter()
    counter.submitted(1, 0)
    counter.submitted(2, 0)
    counter.take(step(0, 10, 2, held_by="blocks"))
    counter.take(step(10, 20, 1))
    assert parts_ms(counter, 1, 20) == [0, 10, 0, 10]


def test_a_preempted_prompt_waits_for_blocks() -> None:
    counter = CauseCounter()
    counter.submitted(1, 0)
    counter.take(step(0, 10, 1))
    counter.take(step(10, 20, held_by="blocks", preempted=[1]))
    counter.take(step(20, 30, held_by="batch"))
    counter.take(step(30, 40, 1))
    assert parts_ms(counter, 1, 40) == [10, 10, 0, 20]


def test_nothing_is_known_of_an_ended_request() -> None:
    counter = CauseCounter()
    counter.submitted(1, 0)
    counter.take(step(0, 10, 1))
    counter.forget(1)
    assert counter.first_token(1, 1.0) is None


def test_the_engine_splits_the_times_of_its_requests(tiny_llama: Any) -> None:
    with Engine(tiny_llama, num_blocks=13, block_size=4, max_batch_size=3, prefill_max_tokens=8) as engine:
        engine.pause()
        streams = [engine.submit(list(range(5 + i, 29 + i)), LONG if i == 0 else SHORT) for i in range(2)]
        streams += [engine.submit([i + 5] * 3, SHORT) for i in range(3)]
        engine.resume()
        causes = [stream.result(60).metrics.ttft_causes for stream in streams]
    for stream, found in zip(streams, causes, strict=True):
        assert found is not None and min(found) >= 0.0
        assert sum(found) == pytest.approx(stream.metrics.ttft_s)
    first, second = causes[0], causes[1]
    assert first is not None and second is not None
    assert first.computing_s > 0 and first.blocks_s == first.budget_s == 0
    assert second.budget_s > 0 and second.blocks_s > 0
