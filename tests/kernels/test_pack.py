"""Packed weights: the same products, plain weights freed if nothing reads them, and no model in memory touched."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from roseplay.config import EngineConfig
from roseplay.core.progress import Reporter
from roseplay.kernels.cpu.pack import PackedLinear, can_pack, pack_linears
from roseplay.kernels.cpu.products import Products
from roseplay.kernels.merge import SharedInputs
from roseplay.model.loader import load_model
from tests.kernels.conftest import needs_packed_bfloat16, needs_packing
from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import Driver, eager_logits, make_runner


@needs_packing
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_packed_bfloat16)])
@pytest.mark.parametrize(
    "products", [Products(True, 1), Products(True), Products(False)], ids=["AMX", "ours", "oneDNN"]
)
def test_a_packed_product_is_the_plain_one(dtype: torch.dtype, products: Products) -> None:
    torch.manual_seed(0)
    rtol, atol = (2e-2, 1e-2) if dtype == torch.bfloat16 else (1e-5, 1e-4)
    weight = torch.randn(50, 64, dtype=dtype)
    for bias in (torch.randn(50, dtype=dtype), None):
        layer = PackedLinear(weight, bias, products)
        for rows in (1, 2, 7, 32, 65):
            x = torch.randn(1, rows, 64, dtype=dtype)
            with torch.inference_mode():
                found = layer(x)
            torch.testing.assert_close(found, functional.linear(x, weight, bias), rtol=rtol, atol=atol)


@needs_packing
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_linear_layers_are_packed_unless_the_switch_is_off(family: str) -> None:
    """A model in memory keeps its modules and weights."""
    model = tiny_model(FAMILIES[family]())
    before, weights = kinds(model), copy.deepcopy(model.state_dict())
    packed, plain = (kinds(load_model(model, EngineConfig(pack_weights=on)).model) for on in (True, False))
    assert PackedLinear in packed and PackedLinear not in plain
    assert nn.Linear not in packed and Conv1D not in packed
    assert kinds(model) == before and not any("forward" in vars(module) for module in model.modules())
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


def kinds(model: nn.Module) -> list[type]:
    return [type(module) for module in model.modules()]


class OwnProduct(nn.Module):
    """Multiplies by the weight of a linear layer that it never calls, as LongCat's router does."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.layer.weight.type(x.dtype), self.layer.bias)


@needs_packing
def test_a_layer_whose_weight_is_read_keeps_it() -> None:
    plain, model = tiny_model(FAMILIES["llama"]()), tiny_model(FAMILIES["llama"]())
    model.model.layers[1].mlp.down_proj = OwnProduct(model.model.layers[1].mlp.down_proj)
    driver = Driver(make_runner(model), [list(range(3, 20))])
    torch.testing.assert_close(driver.step({0: 17})[0], eager_logits(plain, list(range(3, 20)))[-1], rtol=0, atol=1e-4)
    assert not isinstance(driver.runner.loaded.model.model.layers[1].mlp.down_proj.layer, PackedLinear)


@needs_packing
def test_the_plain_weight_is_let_go() -> None:
    layer = nn.Linear(16, 16)
    plain = weakref.ref(layer.weight)
    packed = PackedLinear(layer.weight, layer.bias)
    del layer
    gc.collect()
    assert plain() is None
    assert packed.weight.device.type == "meta" and packed.weight.shape == (16, 16)


@needs_packing
def test_plain_weights_are_freed_one_group_after_another() -> None:
    """So that packing takes little more memory than the weights; whatever found the groups is still there."""
    model = tiny_model(FAMILIES["llama"]())
    with SharedInputs(model) as inputs:
        model(input_ids=torch.tensor([[3, 4, 5]]))
    weights = [weakref.ref(module.weight) for module in model.modules() if type(module) is nn.Linear]
    alive: list[int] = []

    class Watching(Reporter):
        def advance(self, amount: int = 1) -> None:
            alive.append(sum(weight() is not None for weight in weights))

    packed = pack_linears(model, inputs.groups, Watching())
    assert packed == len(weights) == len(alive)
    assert all(left <= len(weights) - done for done, left in enumerate(alive))
    assert alive[-1] <= 1


def test_only_a_cpu_packs_and_only_what_it_can() -> None:
    assert not can_pack(torch.device("cuda"), torch.float32)
    assert not can_pack(torch.device("cpu"), torch.float16)
