"""Layers that keep a state: packed and chunked logits equal those of eager, and each request has its own state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from roseplay.config import EngineConfig
from roseplay.core.step import StepEntry
from roseplay.model.errors import UnsupportedModelError
from roseplay.model.loader import load_model
from roseplay.model.shard import check_plan
from roseplay.model.stateful import StatefulForward, keeps_states
from roseplay.model.states import (
    StatePool,
    StateShape,
    StateSlotsError,
    bytes_per_slot,
    choose_state_slots,
    choose_state_snapshots,
)
from tests.model.families import FAMILIES, STATEFUL, VOCABULARY, tiny_model
from tests.model.harness import Driver, make_runner, random_tokens, step_of
from tests.model.test_families import worst_difference

SHAPES = {
    1: (StateShape("conv_states", 0, (6, 3), torch.float32), StateShape("recurrent_states", 0, (2, 4), torch.float64))
}
QUICK = ["qwen3_5_text", "jamba", "zamba2"]


@pytest.mark.parametrize("family", QUICK)
def test_logits_equal_eager(family: str):
    assert worst_difference(tiny_model(STATEFUL[family]()), "cpu") < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["cpu", "gather", "reference"])
@pytest.mark.parametrize("family", STATEFUL)
def test_logits_equal_eager_on_each_backend(family: str, attention: str):
    assert worst_difference(tiny_model(STATEFUL[family]()), attention) < 1e-4


def test_which_families_keep_states():
    assert all(keeps_states(make()) for make in STATEFUL.values())
    assert not any(keeps_states(make()) for make in FAMILIES.values())


def test_only_some_continue_token_by_token():
    """Jamba's scan accepts no initial state."""
    found = {}
    for family in ("jamba", "lfm2"):
        model = load_model(tiny_model(STATEFUL[family]()), EngineConfig()).model
        forwards = [module.forward for module in model.modules() if isinstance(module.forward, StatefulForward)]
        assert len(forwards) == 2
        found[family] = {forward.one_by_one for forward in forwards}
    assert found == {"jamba": {True}, "lfm2": {False}}


def test_a_slot_that_was_used_before_changes_nothing():
    model = tiny_model(STATEFUL["lfm2"]())
    runner, prompt = make_runner(model), random_tokens(9, VOCABULARY, 0)
    alone = Driver(runner, [prompt]).step({0: 9})[0].clone()
    Driver(runner, [random_tokens(20, VOCABULARY, 1)]).step({0: 20})
    assert torch.equal(Driver(runner, [prompt]).step({0: 9})[0], alone)


@pytest.mark.parametrize("slots", [(0, 1), (2, 2), (1, 65)])
def test_a_step_whose_slots_are_wrong_is_refused(slots: tuple[int, int]):
    runner = make_runner(tiny_model(STATEFUL["lfm2"]()))
    driver = Driver(runner, [[5, 6], [7, 8]])
    for request, slot in zip(driver.requests, slots, strict=True):
        request.state_slot = slot
        driver.blocks.give(request, 2)
    with pytest.raises(ValueError, match="state slots"):
        step_of(runner, *(StepEntry(request, 0, 2) for request in driver.requests))


def test_pool_reads_what_was_written():
    pool = StatePool(SHAPES, 4, torch.device("cpu"))
    slots = torch.tensor([3, 1])
    written = [torch.rand(2, 6, 3), torch.rand(2, 2, 4, dtype=torch.float64)]
    pool.write(1, slots, written)
    assert all(torch.equal(a, b) for a, b in zip(pool.read(1, slots), written, strict=True))
    assert all(state.shape[0] == 1 and not state.any() for state in pool.read(1, torch.tensor([2])))
    assert [tuple(state.shape) for state in pool.empty(1, 5)] == [(5, 6, 3), (5, 2, 4)]
    pool.check(np.array([1, 3]))


def test_states_are_copied_all_at_once():
    pool = StatePool(SHAPES, 3, torch.device("cpu"), num_snapshots=2)
    slots = torch.tensor([1, 2])
    first, second = pool.shapes[1][0].shape, pool.shapes[1][1].shape
    states = [torch.rand(2, *first), torch.rand(2, *second, dtype=torch.float64)]
    pool.write(1, slots, states)
    pool.copy([])
    pool.copy([(1, 4), (2, 3)])
    for written, found in zip(states, pool.read(1, torch.tensor([1, 2, 3, 4])), strict=True):
        assert torch.equal(found, written[[0, 1, 1, 0]])
    pool.copy([(1, 2), (2, 4)])
    for written, found in zip(states, pool.read(1, torch.tensor([1, 2, 4])), strict=True):
        assert torch.equal(found, written[[0, 0, 1]])


@pytest.mark.parametrize("copies", [[(1, 5)], [(0, 3)], [(1, 0)], [(5, 1)], [(1, 3), (2, 3)]])
def test_copies_that_are_wrong_are_refused(copies: list[tuple[int, int]]):
    pool = StatePool(SHAPES, 3, torch.device("cpu"), num_snapshots=2)
    with pytest.raises(ValueError, match="states are to be copied"):
        pool.copy(copies)


def test_no_request_has_the_slot_of_a_kept_state():
    pool = StatePool(SHAPES, 3, torch.device("cpu"), num_snapshots=2)
    with pytest.raises(ValueError, match="of 1 to 2"):
        pool.check(np.array([1, 3]))


def test_as_many_states_are_kept_as_memory_allows():
    size = bytes_per_slot(SHAPES)
    assert choose_state_snapshots(EngineConfig(), 0, free_bytes=0, on_gpu=False) == 0
    assert choose_state_snapshots(EngineConfig(), size, free_bytes=10**9, on_gpu=False) == 64
    assert choose_state_snapshots(EngineConfig(), size, free_bytes=80 * size, on_gpu=True) == 10
    assert choose_state_snapshots(EngineConfig(), size, free_bytes=0, on_gpu=True) == 0
    assert choose_state_snapshots(EngineConfig(state_snapshots=0), size, free_bytes=size, on_gpu=True) == 0
    assert choose_state_snapshots(EngineConfig(state_snapshots=7), size, free_bytes=7 * size, on_gpu=False) == 7
    with pytest.raises(StateSlotsError, match="set state_snapshots lower"):
        choose_state_snapshots(EngineConfig(state_snapshots=8), size, free_bytes=7 * size, on_gpu=False)


def test_as_many_slots_as_memory_allows():
    size = bytes_per_slot(SHAPES)
    assert size == 6 * 3 * 4 + 2 * 4 * 8
    config = EngineConfig()
    assert choose_state_slots(config, 0, free_bytes=0, on_gpu=False) == 0
    assert choose_state_slots(config, size, free_bytes=10**9, on_gpu=False) == 64
    assert choose_state_slots(config, size, free_bytes=10**9, on_gpu=True) == 256
    assert choose_state_slots(config, size, free_bytes=81 * size, on_gpu=True) == 10
    assert choose_state_slots(EngineConfig(state_slots=7), size, free_bytes=8 * size, on_gpu=False) == 7
    with pytest.raises(StateSlotsError, match="set state_slots lower"):
        choose_state_slots(EngineConfig(state_slots=8), size, free_bytes=8 * size, on_gpu=False)


def test_it_is_not_split_over_processes():
    with pytest.raises(UnsupportedModelError, match=r"recurrent layers of lfm2 .* set it to 1"):
        check_plan(STATEFUL["lfm2"](), 2, name="a model")
