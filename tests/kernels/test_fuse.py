"""Fused operations and merged layers, against what they replace."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.activations import GELUTanh
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearRMSNormGated
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNormGated

from roseplay.config import EngineConfig
from roseplay.kernels.cpu.pack import PackedLinear
from roseplay.kernels.gated_mlp import GatedMLP
from roseplay.kernels.merge import MergedLinear, MergedPart, SharedInputs
from roseplay.model.loader import load_model

pytest.importorskip("roseplay.kernels.cpu.rows", reason="Numba is not installed")
from roseplay.kernels.cpu import activations, argmax, rotary, rows
from roseplay.kernels.cpu import fuse as fuse_cpu
from tests.kernels.conftest import needs_packed_bfloat16, needs_packing
from tests.model.families import FAMILIES, tiny_model

DTYPES = [torch.float32, torch.bfloat16]


def within_rounding(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.dtype == y.dtype and torch.allclose(x, y, rtol=2 * torch.finfo(x.dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [LlamaRMSNorm, GemmaRMSNorm])
@pytest.mark.parametrize("dim", [5, 48])
def test_norms_are_the_models_own(kind: type[nn.Module], dim: int, dtype: torch.dtype) -> None:
    norm = kind(dim, eps=1e-3)
    norm.weight.data = torch.randn(dim)
    norm = norm.to(dtype)
    found = fuse_cpu.FusedRMSNorm.of(norm)
    assert found is not None and found.plus_one is (kind is GemmaRMSNorm)
    x = torch.randn(2, 7, 3, dim, dtype=dtype).transpose(1, 2)
    assert within_rounding(found(x), norm(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [5, 128])
def test_gated_norms_are_the_models_own(dim: int, dtype: torch.dtype) -> None:
    norm = Qwen3_5RMSNormGated(dim, eps=1e-3)
    norm.weight.data = torch.randn(dim)
    norm = norm.to(dtype)
    found = fuse_cpu.FusedGatedRMSNorm.of(norm)
    assert found is not None
    x, gate = torch.randn(2, 7, 3, dim, dtype=dtype).transpose(1, 2)
    assert within_rounding(found(x, gate), norm(x, gate))
    assert torch.equal(found(x.double(), gate.double()), norm(x.double(), gate.double()))
    assert fuse_cpu.FusedGatedRMSNorm.of(KimiLinearRMSNormGated(dim)) is None  # whose gate is a sigmoid


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [5, 48, 768])
def test_layer_norms_are_torchs_own(dim: int, dtype: torch.dtype) -> None:
    norm = nn.LayerNorm(dim, eps=1e-3)
    norm.weight.data, norm.bias.data = torch.randn(dim), torch.randn(dim)
    norm = norm.to(dtype)
    found = fuse_cpu.FusedLayerNorm.of(norm)
    assert found is not None
    x = (torch.randn(2, 7, 3, dim) * 5 + 3).to(dtype).transpose(1, 2)
    torch.testing.assert_close(found(x), norm(x), rtol=4 * torch.finfo(dtype).eps, atol=4e-6)
    assert fuse_cpu.FusedLayerNorm.of(nn.LayerNorm(dim, bias=False)) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 15, 512, 513, 40_000])
def test_gelus_are_torchs_own(size: int, dtype: torch.dtype) -> None:
    gelu = fuse_cpu.FusedGELU.of(nn.GELU(approximate="tanh"), dtype)
    assert gelu is not None
    x = (torch.linspace(-12, 12, size)).to(dtype)
    expected = nn.functional.gelu(x.double(), approximate="tanh").to(dtype)
    torch.testing.assert_close(gelu(x), expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    assert fuse_cpu.FusedGELU.of(GELUTanh(), dtype) is not None
    assert fuse_cpu.FusedGELU.of(nn.GELU(), dtype) is None


class UnlikeRMSNorm(LlamaRMSNorm):
    """Has the name and the attributes of a norm, but computes something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 0.1


def test_a_norm_that_differs_is_left_alone() -> None:
    assert fuse_cpu.FusedRMSNorm.of(UnlikeRMSNorm(48)) is None
    assert fuse_cpu.FusedRMSNorm.of(nn.LayerNorm(48)) is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_rotary_embeddings_of_parts_of_a_product(dtype: torch.dtype) -> None:
    both = torch.randn(1, 5, 6 * 20, dtype=dtype).view(1, 5, 6, 20).transpose(1, 2)
    q, k = both[:, :4], both[:, 4:]
    cos, sin = torch.randn(2, 1, 5, 20, dtype=dtype)
    for found, expected in zip(rotary.rotate(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert torch.equal(found, expected)


class ShiftedAngles(LlamaRotaryEmbedding):
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x, position_ids + (position_ids > 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_angles_are_the_models_own(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 1024}
    config = LlamaConfig(head_dim=12, max_position_embeddings=4096, rope_parameters=rope)
    plain = LlamaRotaryEmbedding(config)
    assert plain.attention_scaling > 1.1
    fused = fuse_cpu.FusedAngles.of(plain, dtype)
    assert fused is not None and fuse_cpu.FusedAngles.of(fused, dtype) is None
    for positions in (torch.tensor([[4095]]), torch.randint(4096, (1, 700)), torch.arange(8).view(2, 4)):
        x = torch.empty(len(positions), 1, dtype=dtype)
        for found, expected in zip(fused(x, positions), plain(x, positions), strict=True):
            assert found.shape == expected.shape and found.dtype == dtype
            assert float((found.double() - expected.double()).abs().max()) <= 2 * torch.finfo(dtype).eps
    x = torch.empty(1, 1, dtype=torch.float64)
    assert torch.equal(fused(x, torch.tensor([[7]]))[0], plain(x, torch.tensor([[7]]))[0])
    assert fuse_cpu.FusedAngles.of(ShiftedAngles(config), dtype) is None
    assert fuse_cpu.FusedAngles.of(nn.LayerNorm(4), dtype) is None
    monkeypatch.setattr(rotary, "angles", lambda *given: pytest.fail("it would read the frequencies as float32"))
    assert fuse_cpu.FusedAngles.of(plain.to(torch.bfloat16), dtype) is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [9, 32])
def test_gates(dim: int, dtype: torch.dtype) -> None:
    both = (torch.randn(4, 2 * dim) * 20).to(dtype)
    out = torch.empty(4, dim, dtype=dtype)
    activations.silu_times(both, out)
    assert within_rounding(out, nn.functional.silu(both[:, :dim]) * both[:, dim:])


def test_what_it_cannot_read_is_left_to_torch() -> None:
    assert rows.fits(torch.empty(4, 4))
    assert not rows.fits(torch.empty(4, dtype=torch.float64))
    assert not rows.fits(torch.empty(4, 4).T)


@needs_packing
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=needs_packed_bfloat16)])
def test_a_model_computes_the_same_fused(dtype: str) -> None:
    """The logits of a few tokens are equal up to rounding, with the modules that the loader installed."""
    config = FAMILIES["llama"]()
    config.attention_bias = True
    model = tiny_model(config)
    plain = load_model(model, EngineConfig(dtype=dtype, pack_weights=False, fuse_ops=False)).model
    changed = load_model(model, EngineConfig(dtype=dtype)).model
    kinds = {type(module) for module in changed.modules()}
    assert {fuse_cpu.FusedRMSNorm, GatedMLP, MergedPart} <= kinds
    attention = changed.model.layers[0].self_attn
    assert attention.forward.__func__.__globals__["apply_rotary_pos_emb"] is not apply_rotary_pos_emb
    assert not {fuse_cpu.FusedRMSNorm, GatedMLP, MergedPart} & {type(module) for module in plain.modules()}

    layer, x = changed.model.layers[0], torch.randn(1, 3, 32, dtype=getattr(torch, dtype))
    before = plain.model.layers[0]
    with torch.inference_mode():
        pairs = [(layer.mlp(x), before.mlp(x)), (layer.input_layernorm(x), before.input_layernorm(x))]
        pairs += [
            (getattr(layer.self_attn, p)(x), getattr(before.self_attn, p)(x)) for p in ("q_proj", "k_proj", "v_proj")
        ]
    rtol, atol = (2e-2, 1e-2) if dtype == "bfloat16" else (1e-5, 1e-6)
    for found, expected in pairs:
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


@needs_packing
def test_merged_layers_answer_for_the_tensor_they_are_given() -> None:
    """In any order, called again or for another tensor, as the separate layers would."""
    layers = [nn.Linear(6, out, bias=out != 3) for out in (4, 3, 5)]
    merged = MergedLinear(layers, PackedLinear)
    parts = [MergedPart(merged, i, layer.weight) for i, layer in enumerate(layers)]
    x, y = torch.randn(2, 1, 7, 6)
    with torch.inference_mode():
        for number, given in [(0, x), (1, y), (1, x), (2, x), (2, x), (0, y), (1, y), (2, x)]:
            torch.testing.assert_close(parts[number](given), layers[number](given))


def test_only_layers_of_one_parent_and_one_input_are_siblings() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d, self.twice = (nn.Linear(4, 4) for _ in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.a(x) + self.b(x)
            return self.twice(x) + self.c(x) + self.d(x + 1) + self.twice(x)

    block = Block()
    with SharedInputs(block) as inputs:  # type: ignore[arg-type]
        block(torch.randn(1, 4))
    assert [[id(layer) for layer in group] for group in inputs.groups] == [[id(block.a), id(block.b)]]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 7, 1024, 1025, 5000])
def test_the_largest_number_is_found(columns: int, dtype: torch.dtype) -> None:
    x = torch.randn(6, columns).to(dtype)
    x[1] -= 100  # all negative
    x[2] = 3.0  # all equal: the first one counts
    x[3, : columns // 2] = -torch.inf
    x[4] = torch.finfo(dtype).min
    x[4, columns // 2] = torch.finfo(dtype).max
    x[5, columns - 1] = 50
    assert torch.equal(argmax.argmax(x), x.argmax(-1))
    assert torch.equal(argmax.argmax(x.T.contiguous().T), x.argmax(-1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [1, 7, 1024, 1025, 5000])
def test_a_row_without_a_largest_number_has_none(columns: int, dtype: torch.dtype) -> None:
    bits = torch.int16 if dtype == torch.bfloat16 else torch.int32
    for place in {0, columns // 2, columns - 1}:
        for number in (torch.nan, torch.inf):
            x = torch.randn(3, columns).to(dtype)
            x[1, place] = number
            assert argmax.argmax(x).tolist() == [int(x[0].argmax()), -1, int(x[2].argmax())]
            x[1, place] = torch.nan
            x[1].view(bits)[place] |= torch.iinfo(bits).min  # a NaN with a sign bit
            assert argmax.argmax(x)[1] == -1
    x[1] = -torch.inf
    assert argmax.argmax(x)[1] == -1
