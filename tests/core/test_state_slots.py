"""Requests of a model with recurrent layers: one state slot each, and no use of the prefix cache."""

from __future__ import annotations

import pytest

from roseplay.config import SamplingParams
from roseplay.core.cache_miss import MissReason
from roseplay.core.request import Request
from roseplay.core.state_slots import StateSlots
from tests.core.checker import NO_MEMORY
from tests.core.harness import Rig

PROMPT = list(range(1, 12))


def test_no_more_run_than_there_are_slots():
    rig = Rig(num_state_slots=2)
    for _ in range(3):
        rig.add(PROMPT, 3)
    assert rig.step().held_by == "slots"
    assert len(rig.scheduler.running) == 2


def test_equal_prompts_are_computed_separately_and_say_why():
    rig = Rig(num_state_slots=4)
    rig.add(PROMPT, 2)
    rig.add(PROMPT, 2)
    rig.step()
    rig.served(PROMPT)
    assert rig.explanations.told[MissReason.STATE] == 3


def test_decodes_start_again_when_a_step_finds_no_memory():
    """The step may already have changed their states."""
    rig = Rig(num_state_slots=4)
    rig.add(PROMPT, 6)
    rig.add(PROMPT[:5], 6)
    rig.step()
    rig.step()
    rig.step(NO_MEMORY)
    assert not rig.scheduler.running


def test_slots_are_not_handed_out_or_taken_back_twice():
    slots = StateSlots(1)
    first, second = (Request(number, [1], SamplingParams()) for number in range(2))
    slots.take(first)
    for wrong in (first, second):
        with pytest.raises(RuntimeError):
            slots.take(wrong)
    second.state_slot = first.state_slot
    with pytest.raises(RuntimeError):
        slots.release(second)
    slots.release(first)
    assert (first.state_slot, slots.num_free) == (0, 1)
