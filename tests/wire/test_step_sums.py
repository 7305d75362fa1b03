"""Forward pass metrics of steps and requests written by hand: what waits, and how much context is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal

import pytest

from roseplay.engine.records import EntryRecord, StepRecord
from roseplay.engine.telemetry import RequestEvent, StepEvent, TokenEvent
from roseplay.wire.forward_pass import QueuedRequests, ScheduledRequests
from roseplay.wire.step_sums import StepSums


class Stream(SimpleNamespace):
    """A request with a prompt of this many tokens, as in events."""

    def __init__(self, prompt_tokens: int) -> None:
        super().__init__(metrics=SimpleNamespace(prompt_tokens=prompt_tokens))

    __hash__ = object.__hash__


@pytest.fixture
def sums() -> StepSums:
    return StepSums("w", "a scope")


class Requests:
    """Reports what happens to requests, and keeps their streams."""

    def __init__(self, sums: StepSums) -> None:
        self._sums, self.streams = sums, dict[int, Any]()

    def __call__(self, kind: Literal["submitted", "finished"], request_id: int, prompt: int = 0) -> None:
        stream = self.streams.setdefault(request_id, Stream(prompt))
        assert self._sums.take(RequestEvent(kind, request_id, 0, stream)) is None


def decode(request_id: int, prompt: int) -> EntryRecord:
    return EntryRecord(request_id, 0, 1, prompt, prompt, 0, 0)


def record_of(waiting: int, *entries: EntryRecord, **more: Any) -> StepRecord:
    return StepRecord(0, start_ns=0, end_ns=0, waiting=waiting, device_ns=2_500_000_000, entries=[*entries], **more)


def queued(sums: StepSums, waiting: int, *entries: EntryRecord, **more: Any) -> QueuedRequests:
    """The requests that wait after a step, which always has an entry."""
    metrics = sums.take(StepEvent(record_of(waiting, *(entries or [decode(99, 3)]), **more), []))
    assert (metrics.worker_id, metrics.timing_scope, metrics.wall_time) == ("w", "a scope", 2.5)
    return metrics.queued_requests


def test_waiting_prompts_are_counted_until_a_step_admits_them_or_they_end(sums: StepSums) -> None:
    request = Requests(sums)
    for request_id, prompt in enumerate((10, 30, 50), 1):
        request("submitted", request_id, prompt)
    assert queued(sums, 3) == QueuedRequests(3, 90, pytest.approx(800 / 3))
    assert queued(sums, 2) == QueuedRequests(2, 40, 100.0)  # the worker had not seen the third
    assert queued(sums, 2, admitted=[1]) == QueuedRequests(2, 80, 100.0)
    request("finished", 2)
    assert queued(sums, 1) == QueuedRequests(1, 50)
    assert queued(sums, 0) == QueuedRequests()


def test_a_request_that_nobody_holds_any_more_has_no_length(sums: StepSums) -> None:
    request = Requests(sums)
    stream = Stream(10)
    event = RequestEvent("submitted", 1, 0, stream)  # type: ignore[arg-type]
    del stream
    sums.take(event)
    request("submitted", 2, 20)
    assert queued(sums, 2) == QueuedRequests(2, 20, 100.0)


def test_preempted_requests_wait_with_their_context_until_they_are_admitted_or_end(sums: StepSums) -> None:
    request = Requests(sums)
    for request_id in (1, 2, 3):
        request("submitted", request_id, 2)
    request("submitted", 4, 40)
    queued(sums, 0, decode(1, 7), decode(2, 20), decode(3, 5), admitted=[1, 2, 3])
    found = queued(sums, 4, preempted=[1, 2, 3])
    assert found == QueuedRequests(1, 40, 0.0, 3, 8 + 21 + 6, pytest.approx(398 / 9))
    assert queued(sums, 3, decode(1, 8), admitted=[1]) == QueuedRequests(1, 40, 0.0, 2, 27, 56.25)
    request("finished", 2)
    assert queued(sums, 2) == QueuedRequests(1, 40, 0.0, 1, 6)
    assert queued(sums, 1) == QueuedRequests(0, 0, 0.0, 1, 6)


def test_a_request_that_is_preempted_after_its_end_does_not_wait(sums: StepSums) -> None:
    """As after an abort that the engine's worker had not seen yet."""
    request = Requests(sums)
    for request_id in (1, 2):
        request("submitted", request_id, 2)
    queued(sums, 0, decode(1, 7), decode(2, 20), admitted=[1, 2])
    request("finished", 1)
    assert queued(sums, 2, preempted=[1, 2]).num_decode_requests == 1
    assert queued(sums, 1) == QueuedRequests(0, 0, 0.0, 1, 21)


def test_contexts_of_requests_that_were_in_no_step_for_longest_are_forgotten() -> None:
    sums = StepSums("w", "a scope", most_contexts=2)
    request = Requests(sums)
    for request_id in (1, 2, 3):
        request("submitted", request_id, 9)
    for request_id in (1, 2, 1, 3):
        queued(sums, 0, decode(request_id, 10), admitted=[request_id])
    assert queued(sums, 1, decode(3, 10), preempted=[1]).sum_decode_kv_tokens == 12
    assert queued(sums, 2, decode(3, 10), preempted=[2]).sum_decode_kv_tokens == 12 + 0


def test_the_context_grows_by_the_tokens_of_a_draft_that_were_right(sums: StepSums) -> None:
    """The first request draws two tokens, one of them from its draft; the second has no draft; the third has ended."""
    entries = [EntryRecord(1, 0, 4, 10, 10, 0, 0), decode(2, 20), EntryRecord(3, 0, 4, 30, 30, 0, 0)]
    tokens = [TokenEvent(request_id, 5, 0, 0) for request_id in (1, 1, 2)]
    read = []
    for drawn in (tokens, []):
        metrics = sums.take(StepEvent(record_of(0, *entries), drawn))
        read.append(metrics.scheduled_requests)
    assert [found.sum_decode_kv_tokens for found in read] == [60, (10 + 2) + (20 + 1) + (30 + 1)]
    assert read[0].var_decode_kv_tokens == pytest.approx(200 / 3)
    assert (read[0].num_decode_requests, read[0].num_prefill_requests) == (3, 0)


def test_prompts_and_what_decodes_read_are_followed_through_a_preemption(sums: StepSums) -> None:
    def scheduled(*entries: EntryRecord, **more: Any) -> ScheduledRequests:
        metrics = sums.take(StepEvent(record_of(0, *entries, **more), []))
        return metrics.scheduled_requests

    def prompt(request_id: int, tokens: int, computed: int, target: int, cached: int = 0) -> EntryRecord:
        return EntryRecord(request_id, tokens, 0, computed, target, cached, 0)

    request = Requests(sums)
    for request_id in (1, 2):
        request("submitted", request_id)
    assert sums.take(StepEvent(record_of(0), [])) is None, "it computed nothing"
    entries = prompt(1, 8, 8, 10), prompt(2, 2, 6, 6, cached=4)
    assert scheduled(*entries, prompt_tokens=10, admitted=[1, 2]) == ScheduledRequests(2, 10, 4.0, 4)
    assert scheduled(decode(2, 6), prompt(1, 2, 10, 10), prompt_tokens=2) == ScheduledRequests(1, 2, 0.0, 8, 1, 6)
    assert scheduled(decode(1, 10), preempted=[2]) == ScheduledRequests(num_decode_requests=1, sum_decode_kv_tokens=10)
    again = scheduled(decode(1, 10), prompt(2, 4, 8, 8, cached=4), prompt_tokens=4, admitted=[2])
    assert again == ScheduledRequests(1, 4, 0.0, 4, 1, 11)
