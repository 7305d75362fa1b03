"""What limits a step, according to its record."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.engine.records import StepRecord
from roseplay.recording.step_limit import LIMITS, limit_of

MS = 1_000_000


def record(**values: Any) -> StepRecord:
    spent = {"start_ns": 0, "end_ns": 10 * MS, "forward_ns": 8 * MS, "device_ns": 8 * MS}
    return StepRecord(0, **{**spent, "decode_tokens": 4, "running": 4, **values})


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        ({}, "decode"),
        ({"prompt_tokens": 64}, "prefill"),
        ({"forward_ns": 3 * MS, "device_ns": 3 * MS}, "host"),
        ({"held_by": "blocks", "waiting": 3}, "blocks"),
        ({"held_by": "batch", "waiting": 3}, "batch"),
        ({"held_by": "prefill", "decode_tokens": 100}, "prefill"),
        ({"waiting": 8, "held_by": "batch"}, "queue"),
        ({"waiting": 7}, "decode"),  # they arrived while the step ran, and the next one takes them
    ],
)
def test_the_limit_of_a_step(values: dict[str, Any], limit: str) -> None:
    assert limit in LIMITS
    assert limit_of(record(**values), max_waiting=8) == limit
