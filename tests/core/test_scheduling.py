"""Order and admission: which requests are in a step, and with how many tokens. That budgets are kept is always checked."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.core.request import FinishReason, Request
from roseplay.core.scheduler import Scheduler
from roseplay.core.step import StepResult
from tests.core.harness import BLOCK_SIZE, Rig, sizes


def unique(rig: Rig, *lengths: int, max_new_tokens: int = 4) -> list[Request]:
    return [rig.add([1000 * (index + 1)] * length, max_new_tokens) for index, length in enumerate(lengths)]


@pytest.mark.parametrize(
    ("knobs", "lengths", "steps"),
    [
        ({"prefill_max_tokens": 12}, (6, 4, 9, 3), [{0: 6, 1: 4, 2: 2}, {0: 1, 1: 1, 2: 7, 3: 3}]),
        ({"prefill_max_batch_size": 2}, (3, 3, 3, 3, 3), [{0: 3, 1: 3}, {0: 1, 1: 1, 2: 3, 3: 3}]),
        ({"step_max_tokens": 6}, (4, 2, 9), [{0: 4, 1: 2}, {0: 1, 1: 1, 2: 4}]),  # decodes count first
        ({"prefill_max_tokens": 11}, (40,), [{0: 8}, {0: 8}]),  # ends on a block boundary
        ({"prefill_max_tokens": 3}, (40,), [{0: 3}, {0: 3}]),  # where a whole block does not fit
        ({"prefill_max_tokens": 6}, (6,), [{0: 6}]),  # a prompt as long as the budget
        ({"chunk_max_tokens": 8}, (20, 3, 9), [{0: 8, 1: 3, 2: 8}, {0: 8, 1: 1, 2: 1}, {0: 4, 1: 1, 2: 1}]),
        ({"chunk_max_tokens": 3, "prefill_max_tokens": 5}, (9, 9), [{0: 3, 1: 2}, {0: 3, 1: 2}]),
        ({"chunk_max_tokens": 3, "chunked_prefill": False}, (9,), [{0: 9}]),  # whole prompts stay whole
        ({"prefill_max_tokens": 6, "chunked_prefill": False}, (6,), [{0: 6}]),
        (  # prompts over the budget go alone, and decodes still run
            {"prefill_max_tokens": 8, "chunked_prefill": False},
            (5, 20, 3, 2),
            [{0: 5}, {0: 1, 1: 20}, {0: 1, 1: 1, 2: 3, 3: 2}],
        ),
    ],
    ids=str,
)
def test_each_step_computes_what_fits_first_come_first_served(
    knobs: dict[str, Any], lengths: tuple[int, ...], steps: list[dict[int, int]]
):
    rig = Rig(**knobs)
    unique(rig, *lengths, max_new_tokens=10)
    assert [sizes(rig.step()) for _ in steps] == steps


def test_a_part_that_starts_inside_a_block_ends_on_a_block_boundary_too():
    rig = Rig(prefill_max_tokens=2)
    unique(rig, 40)
    rig.step()
    rig.set_knobs(prefill_max_tokens=BLOCK_SIZE)
    assert sizes(rig.step()) == {0: BLOCK_SIZE - 2}


def test_more_decodes_than_step_max_tokens_take_turns():
    rig = Rig()
    requests = unique(rig, 1, 1, 1, 1, max_new_tokens=6)
    rig.step()
    rig.set_knobs(step_max_tokens=2)
    while rig.scheduler.has_work:
        assert rig.step().decode_tokens == 2
        outputs = [request.num_output_tokens for request in requests]
        assert max(outputs) - min(outputs) <= 1


def test_running_requests_never_exceed_max_batch_size_and_lowering_it_drains():
    rig = Rig(max_batch_size=4)
    unique(rig, *[2] * 10, max_new_tokens=8)
    rig.step()
    assert len(rig.scheduler.running) == 4
    rig.set_knobs(max_batch_size=2)
    while rig.scheduler.has_work:
        before = len(rig.scheduler.running)
        step = rig.step()
        assert not step.preempted
        assert not step.admitted or before < 2


def test_decodes_go_on_while_a_long_prompt_is_computed():
    rig = Rig(prefill_max_tokens=4)
    first = rig.add([5] * 3, 30)
    rig.step()
    rig.add([6] * 40)
    for _ in range(10):
        rig.step()
    assert first.num_output_tokens == 11


def test_end_of_sequence_and_stop_ids_end_a_request_unless_ignored():
    rig, every = Rig(), tuple(range(1, 50))
    rig.add([1], eos=every)
    rig.add([2], stop_token_ids=every, ignore_eos=True)
    rig.add([3], eos=every, ignore_eos=True)
    rig.run()
    ends = [(request.finish_reason, request.num_output_tokens) for request in rig.requests]
    assert ends == [(FinishReason.STOP, 1), (FinishReason.STOP, 1), (FinishReason.LENGTH, 4)]


def scheduler(num_blocks: int = 6) -> Scheduler:
    return Scheduler(num_blocks=num_blocks, block_size=BLOCK_SIZE, max_model_len=100, max_saved_logits=1)


def test_a_result_and_a_request_that_make_no_sense_are_refused():
    made, request = scheduler(), Request(0, [1], SamplingParams(max_new_tokens=4))
    with pytest.raises(ValueError, match="no tokens"):
        Request(0, [], SamplingParams())
    made.add(request)
    with pytest.raises(ValueError, match="in use"):
        made.add(request)
    with pytest.raises(ValueError, match="the step has 1 entries, its result 0"):
        made.update(made.schedule(), StepResult([], []))


def test_there_is_a_step_without_a_row_when_everything_is_cached():
    rig = Rig()
    rig.served(range(9), max_new_tokens=1)
    rig.add(range(9), 1)
    step = rig.step()
    assert sizes(step) == {}
    assert [entry.samples for entry in step.entries] == [True]


@pytest.mark.parametrize("chunked", [True, False])
def test_newcomers_do_not_take_the_budget_that_an_older_prompt_waits_for(chunked: bool):
    """Cached prompts cost no prompt tokens, but their decodes could fill the steps forever."""
    rig = Rig(step_max_tokens=4, max_batch_size=6, chunked_prefill=chunked)
    for number in (7, 1):
        rig.served([number] * BLOCK_SIZE, max_new_tokens=1)
    decoding = [rig.add([7] * BLOCK_SIZE, 20 + number) for number in range(4)]
    rig.step()
    waiting = rig.add([1] * BLOCK_SIZE + [2] * 3, 1)  # begins with a cached block, so it is admitted at once
    for _ in range(60):
        while len(rig.scheduler.waiting) < 3:
            rig.add([7] * BLOCK_SIZE, 9)
        rig.step()
    assert all(request.finish_reason for request in (*decoding, waiting))


@pytest.mark.parametrize(
    ("settings", "lengths", "held"),
    [
        ({"prefill_max_tokens": 12}, (6, 4, 9), ["prefill", None]),  # the last prompt was cut
        ({"prefill_max_tokens": 2 * BLOCK_SIZE}, (3 * BLOCK_SIZE,), ["prefill", None]),
        ({"max_batch_size": 2}, (6, 4, 9), ["batch"] * 4 + [None]),
        ({"num_blocks": 9}, (5 * BLOCK_SIZE, 5 * BLOCK_SIZE), ["blocks"]),
    ],
    ids=str,
)
def test_a_step_says_what_kept_requests_waiting(
    settings: dict[str, Any], lengths: tuple[int, ...], held: list[str | None]
):
    rig = Rig(**settings)
    unique(rig, *lengths)
    assert [rig.step().held_by for _ in held] == held
