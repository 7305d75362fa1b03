"""Preempted requests whose blocks are copied to host memory and back: nothing is computed twice, and no token changes."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.config import Knobs
from roseplay.core.info import EngineInfo, UnsupportedKnobError
from roseplay.core.request import FinishReason, Request
from tests.core.checker import BROKEN_LATER
from tests.core.harness import BLOCK_SIZE, Rig


def pressed(num_host_blocks: int = 100, **knobs: Any) -> Rig:
    """A pool that three answers outgrow."""
    rig = Rig(num_blocks=11, num_host_blocks=num_host_blocks, **{"preemption_mode": "swap", **knobs})
    for number in range(3):
        rig.add([number] * (BLOCK_SIZE + number), 20)
    return rig


def recomputed(rig: Rig) -> int:
    return sum(step.recomputed_tokens for step in rig.steps)


@pytest.mark.parametrize(
    "knobs",
    [{}, {"prefix_cache": False, "same_step_sharing": False}, {"prefill_max_tokens": 3}, {"chunked_prefill": False}],
)
def test_nothing_is_computed_twice(knobs: dict[str, Any]) -> None:
    rig = pressed(**knobs)
    rig.run()
    assert any(step.preempted for step in rig.steps)
    assert recomputed(rig) == 0
    needed = sum(request.num_tokens - 1 for request in rig.requests)  # the last token is not computed
    assert sum(step.prompt_tokens + step.decode_tokens for step in rig.steps) == needed


def test_without_swapping_the_same_is_computed_again() -> None:
    rig = pressed(preemption_mode="recompute", prefix_cache=False)
    rig.run()
    assert not any(step.swapped_out or step.swapped_in for step in rig.steps)
    again = sum(request.num_lost_tokens for request in rig.requests if request.num_preemptions == 1)
    assert recomputed(rig) >= again > 0


def test_what_does_not_fit_into_host_memory_is_computed_again() -> None:
    rig = pressed(num_host_blocks=2, prefix_cache=False)
    rig.run()
    assert recomputed(rig) > 0


def test_blocks_that_are_still_cached_are_not_copied_back() -> None:
    rig = pressed()
    rig.run()
    assert 0 < sum(len(step.swapped_in) for step in rig.steps) < sum(len(step.swapped_out) for step in rig.steps)


def swapped(rig: Rig) -> Request:
    """Steps until a request has been swapped out."""
    while not rig.scheduler.host.swapped:
        rig.step()
    return rig.requests[next(iter(rig.scheduler.host.swapped))]


@pytest.mark.parametrize("times", [1, 2])
def test_if_the_step_that_copies_fails_the_request_is_computed_again(times: int) -> None:
    """Either the step that copies it out, or the one that copies it back."""
    rig, other = pressed(prefix_cache=False), pressed(prefix_cache=False)
    number = swapped(other).request_id
    if times == 2:
        while number in other.scheduler.host.swapped:
            other.step()
    for _ in other.steps[:-1]:
        rig.step()
    rig.step(BROKEN_LATER)
    rig.run()
    assert (recomputed(rig) > 0) == (times == 1)
    assert rig.requests[number].finish_reason is (FinishReason.LENGTH if times == 1 else FinishReason.ERROR)


def test_the_mode_may_change_while_a_request_is_swapped() -> None:
    rig = pressed()
    swapped(rig)
    rig.set_knobs(preemption_mode="recompute")
    rig.run()
    assert any(step.swapped_in for step in rig.steps)


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({"simulated": "1 x H100 SXM"}, "simulated GPU"),
        ({"state_slots": 4}, "recurrent layers"),
        ({}, "swap_space"),
        ({"host_blocks": 1}, None),
        ({"server": "vLLM at http://host"}, None),
    ],
)
def test_where_blocks_cannot_be_swapped_the_setting_is_refused(info: dict[str, Any], why: str | None) -> None:
    texts = dict.fromkeys(("model", "architecture", "device", "dtype", "attention"), "some model")
    numbers = dict.fromkeys(("num_parameters", "weight_bytes", "vocab_size", "kv_bytes_per_token", "threads"), 1)
    engine = EngineInfo(**texts, **numbers, block_size=16, num_blocks=9, max_model_len=64, **info)
    engine.check_knobs(Knobs())
    if why is None:
        engine.check_knobs(Knobs(preemption_mode="swap"))
    else:
        with pytest.raises(
            UnsupportedKnobError, match=f"preemption_mode swap is not possible: .*{why}.*; use recompute"
        ):
            engine.check_knobs(Knobs(preemption_mode="swap"))
