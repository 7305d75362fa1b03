"""Requests of a model with recurrent layers: one state slot each, and no use of the prefix cache."""

from __future__ import annotations

import pytest

from roseplay.config import SamplingParams
from roseplay.core.cache_miss import MissReason
from roseplay.core.request import FinishReason, Request
from roseplay.core.state_slots import StateSlots
from tests.core.checker import NO_MEMORY, Checker

PROMPT = list(range(1, 12))


def test_no_more_run_than_there_are_slots():
    checker = Checker(num_state_slots=2)
    for _ in range(3):
        checker.submit(PROMPT, 3)
    checker.launch()
    assert checker.flying is not None
    assert checker.flying.step.held_by == "slots"
    assert len(checker.scheduler.running) == 2
    checker.drain()


def test_a_slot_is_free_again_after_an_abort():
    checker = Checker(num_state_slots=1)
    checker.submit(PROMPT, 5)
    checker.submit(PROMPT, 5)
    checker.step()
    checker.end(0, FinishReason.ABORT)
    checker.step()
    assert [request.request_id for request in checker.scheduler.running] == [1]
    checker.drain()


def test_preempted_requests_give_up_their_slots():
    checker = Checker(num_state_slots=4, num_blocks=8)
    for number in range(3):
        checker.submit([number, *PROMPT[:7]], 12)
    preempted = 0
    while checker.scheduler.has_work:
        checker.step()
        preempted = max([preempted, *(r.num_preemptions for r in checker.scheduler.requests.values())])
    assert preempted
    checker.drain()


def test_equal_prompts_are_computed_separately_and_say_why():
    checker = Checker(num_state_slots=4)
    checker.submit(PROMPT, 2)
    checker.submit(PROMPT, 2)
    checker.step()
    checker.submit(PROMPT, 2)
    checker.step()
    checker.drain()
    assert checker.explanations.told[MissReason.STATE] == 3


def test_decodes_start_again_when_a_step_finds_no_memory():
    """The step may already have changed their states."""
    checker = Checker(num_state_slots=4)
    checker.submit(PROMPT, 6)
    checker.submit(PROMPT[:5], 6)
    checker.step()
    checker.step()
    checker.step(NO_MEMORY)
    assert not checker.scheduler.running
    checker.drain()


def test_slots_are_not_handed_out_or_taken_back_twice():
    slots = StateSlots(1)
    first, second = (Request(number, [1], SamplingParams()) for number in range(2))
    slots.take(first)
    with pytest.raises(RuntimeError):
        slots.take(first)
    with pytest.raises(RuntimeError):
        slots.take(second)
    second.state_slot = first.state_slot
    with pytest.raises(RuntimeError):
        slots.release(second)
    slots.release(first)
    assert (first.state_slot, slots.num_free) == (0, 1)
