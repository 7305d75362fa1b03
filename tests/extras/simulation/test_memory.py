from __future__ import annotations

import pytest

from roseplay.config import EngineConfig
from roseplay.extras.simulation.gpus import SimulationError
from roseplay.extras.simulation.memory import activation_bytes, choose_num_blocks, kv_bytes
from tests.extras.simulation.test_cost import cost


def test_the_cache_takes_what_weights_and_activations_leave() -> None:
    one = cost()
    left = kv_bytes(one, 0.9)
    assert left == int(80 * 2**30 * 0.9) - 2 * one.shape.num_parameters - activation_bytes(one) - 2**30
    assert 0.5 * 2**30 < activation_bytes(one) < activation_bytes(cost("llama-3.1-70b")) < 5 * 2**30
    blocks = choose_num_blocks(one, EngineConfig(), 8192)
    assert blocks == left // (16 * one.shape.kv_bytes_per_token())
    assert choose_num_blocks(one, EngineConfig(gpu_memory_utilization=0.5), 8192) < blocks
    assert choose_num_blocks(one, EngineConfig(block_size=32), 8192) == pytest.approx(blocks / 2, abs=1)


def test_a_given_number_of_blocks_is_taken_as_it_is() -> None:
    assert choose_num_blocks(cost("llama-3.1-70b"), EngineConfig(num_blocks=77), 8192) == 77
    config = EngineConfig(kv_cache_memory=10 * 2**30)
    whole, halves = choose_num_blocks(cost(), config, 8192), choose_num_blocks(cost(parts=2), config, 8192)
    assert whole == halves == 10 * 2**30 // (16 * cost().shape.kv_bytes_per_token())


def test_the_pool_of_a_tiny_model_stays_manageable() -> None:
    assert choose_num_blocks(cost("gpt2-124m"), EngineConfig(block_size=1), 1024) == 2**18


def test_more_gpus_hold_more() -> None:
    sizes = [choose_num_blocks(cost("llama-3.1-70b", "h100", parts), EngineConfig(), 8192) for parts in (4, 8)]
    assert sizes[1] > 2 * sizes[0]  # the weights are there only once


def test_a_model_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        SimulationError, match=r"llama-3.1-70b does not fit on H100 SXM: its bf16 weights take 131.4 GiB"
    ):
        choose_num_blocks(cost("llama-3.1-70b"), EngineConfig(), 8192)
    with pytest.raises(SimulationError, match=r"leaves .* GiB for the KV cache, but one request of 131,072 tokens"):
        choose_num_blocks(cost("qwen3-8b", "rtx-4090"), EngineConfig(), 131072)
