"""Kernels that attention may launch are compiled before the first request."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from roseplay.kernels.cuda.emulation import emulate_gpu
from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import Driver, make_runner, random_tokens

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


class Kernel:
    """Computes nothing, but records the variants that would be compiled."""

    def __init__(self) -> None:
        self.variants: set[frozenset[Any]] = set()

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **constants: self.variants.add(frozenset(constants.items()))


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_nothing_is_compiled_while_serving(family: str, monkeypatch: pytest.MonkeyPatch):
    from roseplay.kernels.cuda.attention import append, kernels

    attend, join = Kernel(), Kernel()
    monkeypatch.setattr(kernels, "attend_kernel", attend)
    monkeypatch.setattr(kernels, "join_kernel", join)
    monkeypatch.setattr(append, "append_kernel", Kernel())
    config = FAMILIES[family]()
    config.max_position_embeddings = 2048
    with emulate_gpu((1,), (16,)):
        runner = make_runner(tiny_model(config), attention="triton", num_blocks=2500)
    compiled = len(attend.variants), len(join.variants)
    assert len({dict(variant)["SPLITS"] for variant in attend.variants}) >= 4

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
    assert (len(attend.variants), len(join.variants)) == compiled
