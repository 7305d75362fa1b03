"""Kernels that attention may launch are compiled before the first request."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from roseplay.config import EngineConfig
from roseplay.model.loader import load_model
from roseplay.model.parallel_runner import Follower, Followers, ParallelRunner
from roseplay.model.runner import ModelRunner
from tests.kernels.conftest import needs_triton
from tests.kernels.emulation import emulate_gpu
from tests.kernels.triton_jit import variants
from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import Driver, make_runner, random_tokens

pytestmark = needs_triton


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_nothing_is_compiled_while_serving(family: str):
    from roseplay.kernels.cuda.attention import append, kernels, plan

    config = FAMILIES[family]()
    config.max_position_embeddings = 2048
    with variants(kernels, append, plan) as compiled:
        with emulate_gpu((1,), (16,)):
            runner = make_runner(tiny_model(config), attention="triton", num_blocks=2500)
        at_start = set(compiled)
        assert {name for name, _ in at_start} == {"attend_kernel", "plan_kernel", "append_kernel"}
        serve(runner)
        assert sorted(compiled - at_start) == []


def serve(runner: ModelRunner) -> None:
    """Run prompts, decodes and mixtures of many lengths."""
    lengths = [1, 3, 15, 100, 700, 2000, *[5] * 30]
    driver = Driver(runner, [random_tokens(length + 8, 97, length) for length in lengths])
    everyone = range(len(lengths))
    for i, length in enumerate(lengths[:6]):
        driver.step({i: length})
    driver.step(dict.fromkeys(range(6, 36), 5))
    for running in ([0], [4], [5], [0, 5], list(everyone)):
        driver.step(dict.fromkeys(running, 1))
    driver.step({0: 1, 5: 3})
    driver.step({4: 2, **dict.fromkeys(range(6, 30), 1)})
    driver.knobs["batched_append"] = False
    driver.step({1: 3, 2: 1, 3: 2})


class Line:
    """Stands for a connection to a follower and for its ranks: keeps what rank 0 sends, and gives it in the same order."""

    size, transport = 2, "gloo"

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.tensors: list[torch.Tensor] = []
        self.leads = True

    def send_bytes(self, data: bytes) -> None:
        self.messages.append(data)

    def recv_bytes(self) -> bytes:
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    def broadcast(self, values: torch.Tensor) -> None:
        if self.leads:
            self.tensors.append(values.clone())
        else:
            values.copy_(self.tensors.pop(0))


def test_the_other_ranks_of_a_split_model_compile_the_same_before_serving():
    from roseplay.kernels.cuda.attention import append, kernels, plan

    family = FAMILIES["llama"]()
    family.max_position_embeddings = 2048
    config = EngineConfig(num_blocks=2500, block_size=4, attention="triton", tensor_parallel_size=2)
    line: Any = Line()
    with emulate_gpu(), variants(kernels, append, plan) as leading:
        ParallelRunner(
            load_model(tiny_model(family), config), config, Followers(line, [line], lambda: None), lambda: None
        )
    line.leads = False
    with variants(kernels, append, plan) as following:
        Follower(load_model(tiny_model(family), config), config, line).run(line)
    assert {name for name, _ in following} == {"attend_kernel", "plan_kernel", "append_kernel"}
    assert sorted(leading - following) == []
