"""Tokens that come late are counted by their cause."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.engine.records import StepRecord
from roseplay.engine.telemetry import StepEvent, TokenEvent
from roseplay.serve.decode_stalls import DecodeStalls

MS = 1_000_000
COUNTS = ("cached_tokens", "shared_tokens", "blocks_free", "blocks_cached", "blocks_active", "blocks_shared")


class Decoding:
    """Requests 1 and 2, which get a token in each step."""

    def __init__(self) -> None:
        self.stalls = DecodeStalls()
        self.now = 0
        self.last = {1: 0, 2: 0}
        for request_id in self.last:
            self.stalls.submitted(request_id)

    def step(self, ms: int = 10, *, tokens: tuple[int, ...] = (1, 2), host_ms: int = 1, **values: Any) -> list[Any]:
        start, self.now = self.now, self.now + ms
        times = {"start_ns": start * MS, "end_ns": self.now * MS, "device_ns": (ms - host_ms) * MS}
        known = {**times, "forward_ns": times["device_ns"], "decode_tokens": len(tokens)}
        record = StepRecord(0, **{**known, "running": 2, **values})
        events = [TokenEvent(rid, 7, self.now * MS, (self.now - self.last[rid]) * MS) for rid in tokens]
        self.last.update(dict.fromkeys(tokens, self.now))
        return [(cause, round(1000 * seconds, 3)) for cause, seconds in self.stalls.take(StepEvent(record, events))]


@pytest.fixture
def decoding() -> Decoding:
    steady = Decoding()
    assert [steady.step() for _ in range(10)] == [[]] * 10
    return steady


def test_prompts_in_the_step(decoding: Decoding) -> None:
    assert decoding.step(14, prompt_tokens=64) == []
    assert decoding.step(40, prompt_tokens=512) == [("prompts", 30.0), ("prompts", 30.0)]
    assert decoding.step() == []


def test_the_usual_gap_is_that_of_steps_without_prompts(decoding: Decoding) -> None:
    for _ in range(64):
        assert decoding.step(14, prompt_tokens=64) == []
    assert decoding.step(18) == [("other", 8.0)] * 2


def test_prompts_in_a_step_that_left_the_request_out(decoding: Decoding) -> None:
    assert decoding.step(15, tokens=(1,), prompt_tokens=512) == []
    assert decoding.step(10) == [("prompts", 15.0)]


def test_a_preempted_request(decoding: Decoding) -> None:
    assert decoding.step(10, tokens=(1,), preempted=[2]) == []
    assert decoding.step(12, prompt_tokens=9) == [("preemption", 12.0)]
    assert decoding.step() == []


def test_the_last_token_of_a_preempted_request(decoding: Decoding) -> None:
    """Its end is reported before the step that drew its last token."""
    assert decoding.step(10, tokens=(1,), preempted=[2]) == []
    decoding.stalls.ended(2)
    assert decoding.step(12, prompt_tokens=9) == [("preemption", 12.0)]


def test_a_request_that_is_preempted_after_its_end_is_forgotten(decoding: Decoding) -> None:
    """As after an abort that the engine's worker had not seen yet."""
    decoding.stalls.ended(2)
    decoding.step(tokens=(1,), preempted=[2])
    assert decoding.step(50)[1] == ("other", 50.0)  # its next gap, if it had one


def test_the_host(decoding: Decoding) -> None:
    assert decoding.step(50, host_ms=41) == [("host", 40.0)] * 2


def test_a_slow_step_without_a_known_reason(decoding: Decoding) -> None:
    assert decoding.step(50) == [("other", 40.0)] * 2


def test_nothing_is_late_before_the_usual_gap_is_known() -> None:
    assert Decoding().step(500, prompt_tokens=9) == []
