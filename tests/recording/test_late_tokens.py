"""Tokens that come late, and the cause of each."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.engine.records import EntryRecord, StepRow, TokenRow
from roseplay.recording.late_tokens import LateTokens

STEPS = 10


class Decoding:
    """Requests 1 and 2, which get a token in each step."""

    def __init__(self) -> None:
        self.late = LateTokens()
        self.now = 0.0
        self.last = {1: 0.0, 2: 0.0}
        self.number = 0

    def step(
        self,
        ms: float = 10,
        *,
        tokens: tuple[int, ...] = (1, 2),
        prompts: tuple[tuple[int, int], ...] = (),
        knobs: list[Any] = [],  # noqa: B006 - only read
        **values: Any,
    ) -> list[Any]:
        """Returns the causes of its tokens; ``prompts``: requests and the tokens of their prompts that it computes."""
        start, self.now = self.now, self.now + ms
        self.number += 1
        entries = [EntryRecord(i, 0, 1, 8, 8, 0, 0) for i in tokens] + [
            EntryRecord(i, n, 0, n, n, 0, 0) for i, n in prompts
        ]
        counts = {"prompt_tokens": sum(n for _, n in prompts), "decode_tokens": len(tokens)}
        step = StepRow(
            self.number, t0=start, t1=self.now, entries=entries, **{**counts, "device_ms": ms - 1.0, **values}
        )
        rows = [TokenRow(i, self.now, self.now - self.last.get(i, self.now - ms), self.number) for i in tokens]
        self.last.update(dict.fromkeys(tokens, self.now))
        frame = {"steps": [step], "tokens": rows, "knobs": [[t, 0, changes] for t, changes in knobs]}
        self.late.mark(frame)
        self.rows, self.batch = frame["tokens"], step.usual_batch
        return [row.cause for row in frame["tokens"]]


@pytest.fixture
def decoding() -> Decoding:
    steady = Decoding()
    assert [steady.step() for _ in range(STEPS)] == [[None] * 2] * STEPS
    return steady


@pytest.mark.parametrize(
    ("step", "cause"),
    [
        ({"ms": 14, "prompts": ((3, 64),)}, None),
        ({"ms": 40, "prompts": ((3, 512),)}, "prompts"),
        ({"ms": 50, "mask_wait_ms": 30.0}, "masks"),
        ({"ms": 50, "mask_wait_ms": 6.0, "block_copies": 1}, "copies"),
        ({"ms": 50, "decode_tokens": 4}, "batch"),
        ({"ms": 50, "device_ms": 9.0}, "host"),
        ({"ms": 399, "device_ms": 20.0, "prompts": ((3, 64),), "decode_tokens": 24}, "host"),
        ({"ms": 399, "device_ms": 299.0, "prompts": ((3, 64),), "decode_tokens": 24}, "prompts"),
        ({"ms": 50, "device_ms": 0.0}, "host"),
        ({"ms": 50}, "other"),
    ],
)
def test_a_late_token_has_the_first_cause_that_its_step_explains(
    decoding: Decoding, step: dict[str, Any], cause: str | None
) -> None:
    assert decoding.step(**step) == [cause] * 2
    assert [row.usual_ms for row in decoding.rows] == [10.0] * 2
    assert decoding.batch == 2
    assert decoding.step() == [None] * 2


def test_the_usual_gap_is_that_of_steps_without_prompts(decoding: Decoding) -> None:
    for _ in range(64):
        assert decoding.step(14, prompts=((3, 64),)) == [None] * 2
    assert decoding.step(18) == ["other"] * 2


def test_a_request_that_a_step_left_out(decoding: Decoding) -> None:
    assert decoding.step(15, tokens=(1,), prompts=((3, 512),)) == [None]
    assert decoding.step(10) == [None, "left out"]


def test_a_preempted_request(decoding: Decoding) -> None:
    assert decoding.step(10, tokens=(1,), preempted=[2]) == [None]
    assert decoding.step(12, prompts=((2, 9),)) == [None, "preempted"]
    assert decoding.step() == [None] * 2


def test_a_step_that_computed_only_its_own_prompt_again(decoding: Decoding) -> None:
    assert decoding.step(40, prompts=((1, 64),))[0] == "other"


def test_without_quiet_steps_nothing_is_late_but_what_happened_is_told() -> None:
    begun = Decoding()
    assert begun.step(500) == [None] * 2
    assert begun.step(500, prompts=((3, 9),)) == ["prompts"] * 2
    assert [row.usual_ms for row in begun.rows] == [None] * 2


def test_the_usual_gap_is_of_the_same_slow_motion(decoding: Decoding) -> None:
    assert decoding.step(50, knobs=[(decoding.now, {"slow_motion": [1, 5]})]) == [None] * 2
    for _ in range(5):
        decoding.step(50)
    assert decoding.step(51) == [None] * 2
    assert decoding.rows[0].usual_ms == 50.0


def test_what_slow_motion_sleeps_is_no_work_of_the_host(decoding: Decoding) -> None:
    """A step of 10 ms lasts 50, of which the model takes 9."""
    decoding.step(50, device_ms=9.0, knobs=[(decoding.now, {"slow_motion": [1, 5]})])
    for _ in range(5):
        assert decoding.step(50, device_ms=9.0) == [None] * 2
    assert decoding.step(200, device_ms=39.0, prompts=((3, 512),)) == ["prompts"] * 2
    assert decoding.step(200, device_ms=10.0, prompts=((3, 512),)) == ["host"] * 2


def test_another_server_reports_no_steps() -> None:
    late, causes = LateTokens(), []
    for number in range(8):
        t = 10.0 * number + (50 if number == 7 else 0)
        frame: dict[str, Any] = {
            "steps": [],
            "knobs": [],
            "tokens": [TokenRow(1, t, 60.0 if number == 7 else 10.0, number)],
        }
        late.mark(frame)
        causes += [row.cause for row in frame["tokens"]]
    assert causes == [None] * 7 + ["other"]
