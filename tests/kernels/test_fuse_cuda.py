"""Norms and rotary embeddings as one kernel each: where they are replaced, and that nothing else changes."""

from __future__ import annotations

import copy
import importlib.util
import os

import pytest
import torch

from roseplay.kernels.cuda.fuse import TorchRMSNorm, fuse, fuse_norms, fuse_offset_norms, fuse_rotary
from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import eager_logits, random_tokens


@pytest.mark.parametrize(("family", "norms"), [("llama", 7), ("qwen3", 13), ("mistral", 7), ("gpt_oss", 7)])
def test_norms_are_replaced_and_logits_stay(family: str, norms: int):
    model = tiny_model(FAMILIES[family]())
    plain = copy.deepcopy(model)
    assert fuse_norms(model) == norms
    assert fuse_norms(model) == 0
    tokens = random_tokens(20, 97, 1)
    assert (eager_logits(model, tokens) - eager_logits(plain, tokens)).abs().max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_norms_agree_but_for_rounding(dtype: torch.dtype):
    model = tiny_model(FAMILIES["llama"]()).to(dtype)
    assert fuse_norms(model) == 7


def test_what_only_looks_like_a_norm_is_left_alone():
    gemma = tiny_model(FAMILIES["gemma2"]())  # its norms multiply by 1 + weight
    assert fuse_norms(gemma) == 0
    gpt2 = tiny_model(FAMILIES["gpt2"]())
    assert fuse_norms(gpt2) == 0
    assert not any(isinstance(module, TorchRMSNorm) for module in [*gemma.modules(), *gpt2.modules()])


interpreted = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="there is no Triton to interpret",
)


@interpreted
@pytest.mark.parametrize(("family", "layers"), [("llama", 3), ("qwen3", 3), ("gemma2", 3), ("gpt2", 0), ("glm4", 0)])
def test_rotary_embeddings_are_replaced_and_logits_stay(family: str, layers: int):
    """GLM-4's rotate adjacent pairs instead of halves, so they are not replaced."""
    model = tiny_model(FAMILIES[family]())
    plain = copy.deepcopy(model)
    assert fuse_rotary(model) == layers
    tokens = random_tokens(9, 97, 1)
    assert (eager_logits(model, tokens) - eager_logits(plain, tokens)).abs().max() < 1e-4


@interpreted
@pytest.mark.parametrize(("family", "norms"), [("gemma", 7), ("gemma2", 13), ("gemma3_text", 19), ("llama", 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_by_one_plus_weight_are_replaced_and_logits_stay(family: str, norms: int, dtype: torch.dtype):
    """Gemma 3's norms of heads too, whose rows lie apart."""
    model = tiny_model(FAMILIES[family]()).to(dtype)
    plain = copy.deepcopy(model)
    assert fuse_offset_norms(model) == norms
    assert fuse_offset_norms(model) == 0
    tokens = random_tokens(5, 97, 1)
    error = (eager_logits(model, tokens) - eager_logits(plain, tokens)).abs().max()
    assert error < (1e-4 if dtype == torch.float32 else 0.2)


@interpreted
def test_the_new_rotary_embedding_is_called(monkeypatch: pytest.MonkeyPatch):
    from roseplay.kernels.cuda import rotary as rotary_triton

    called = []
    rotate = rotary_triton.rotate
    monkeypatch.setattr(rotary_triton, "rotate", lambda *args: called.append(args[0].shape) or rotate(*args))
    model = tiny_model(FAMILIES["llama"]())
    fuse(model)
    called.clear()
    eager_logits(model, random_tokens(5, 97, 1))
    assert called == [(1, 4, 5, 8)] * 3
