"""Kernels that update recurrent states in their slots: transformers' results, and no other slot changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.models.bamba import modeling_bamba
from transformers.models.jamba import modeling_jamba
from transformers.models.kimi_linear import modeling_kimi_linear
from transformers.models.qwen3_5 import modeling_qwen3_5

from roseplay.config import EngineConfig
from roseplay.model.loader import load_model
from roseplay.model.stateful import StatefulForward, stateful_modules
from roseplay.model.states import SlotStates
from tests.model.families import STATEFUL, tiny_model
from tests.pairwise import each_value_of, product_of

pytest.importorskip("numba")
from roseplay.kernels.cpu.states import mamba, mamba2
from roseplay.kernels.cpu.states.convolution import causal_conv1d_update
from roseplay.kernels.cpu.states.delta_rule import recurrent_gated_delta_rule
from roseplay.kernels.cpu.states.fuse import fuse_states

DTYPES = [torch.float32, torch.bfloat16]
SLOTS = torch.tensor([5, 2, 3])  # of seven slots
ROWS = len(SLOTS)


def check(
    plain: Callable[..., Any],
    kernel: Callable[..., Any],
    states: torch.Tensor,
    dtype: torch.dtype,
    *,
    first: str,
    **given: Any,
) -> None:
    """Call both with the same arguments; ``plain`` gets a copy of the rows' states as its argument ``first``."""
    plain, before, slotted = inspect.unwrap(plain), states.clone(), states.clone()
    copied = states[SLOTS].clone()
    expected = plain(**{first: copied}, **given)
    found = kernel(**{first: SlotStates(slotted, SLOTS)}, **given)
    if isinstance(expected, tuple):  # the delta rule returns its states
        (expected, copied), found = expected, found[0]
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    torch.testing.assert_close(slotted[SLOTS], copied, rtol=tolerance, atol=tolerance * float(copied.abs().max()))
    others = [slot for slot in range(len(states)) if slot not in SLOTS.tolist()]
    assert torch.equal(slotted[others], before[others])


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@product_of(shape=[(1030, 4, 4), (24, 3, 3), (17, 5, 2)], activation=[None, "silu"], bias=[False, True], dtype=DTYPES)
def test_convolutions(shape: tuple[int, int, int], activation: str | None, bias: bool, dtype: torch.dtype) -> None:
    channels, inputs, width = shape
    check(
        modeling_qwen3_5.causal_conv1d_update,
        causal_conv1d_update,
        randn(7, channels, inputs, dtype=dtype),
        dtype,
        first="conv_state",
        hidden_states=randn(ROWS, 1, channels + 3, dtype=dtype)[:, :, :channels].transpose(1, 2),
        weight=randn(channels, width, dtype=dtype),
        bias=randn(channels, dtype=dtype) if bias else None,
        activation=activation,
    )


@product_of(shape=[(2, 4, 8, 12), (3, 3, 128, 64), (1, 2, 5, 33)], by_channel=[False, True], dtype=DTYPES)
def test_delta_rules(shape: tuple[int, int, int, int], by_channel: bool, dtype: torch.dtype) -> None:
    k_heads, v_heads, k_dim, v_dim = shape
    if by_channel and k_heads < v_heads:
        pytest.skip("Kimi's rule has as many key heads as value heads")
    mixed = randn(ROWS, 1, 2 * k_heads * k_dim + v_heads * v_dim, dtype=dtype)  # as the projections return them
    query, key, value = mixed.split([k_heads * k_dim, k_heads * k_dim, v_heads * v_dim], dim=-1)
    heads = (ROWS, 1, v_heads)

    def plain(query: torch.Tensor, key: torch.Tensor, **given: Any) -> Any:
        of_values = [
            x.repeat_interleave(v_heads // k_heads, dim=2) for x in (query, key)
        ]  # older versions do it before
        if by_channel:
            return inspect.unwrap(modeling_kimi_linear.recurrent_kimi_delta_attention)(*of_values, **given)
        return inspect.unwrap(modeling_qwen3_5.torch_recurrent_gated_delta_rule)(*of_values, **given)

    check(
        plain,
        recurrent_gated_delta_rule,
        randn(7, v_heads, k_dim, v_dim),
        dtype,
        first="initial_state",
        query=query.reshape(ROWS, 1, k_heads, k_dim),
        key=key.reshape(ROWS, 1, k_heads, k_dim),
        value=value.reshape(ROWS, 1, v_heads, v_dim),
        g=-randn(*heads, k_dim).abs() if by_channel else -randn(*heads).abs(),
        beta=randn(*heads, dtype=dtype).sigmoid(),
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )


@each_value_of(shape=[(4, 2, 8, 16), (3, 1, 5, 40)], gated=[False, True], state_dtype=DTYPES, dtype=DTYPES)
def test_mamba_2(shape: tuple[int, int, int, int], gated: bool, state_dtype: torch.dtype, dtype: torch.dtype) -> None:
    heads, groups, dim, size = shape

    def of_heads(x: torch.Tensor) -> torch.Tensor:
        return x[..., None].expand(*x.shape, dim)

    check(
        modeling_bamba.mamba2_selective_state_update,
        mamba2.selective_state_update,
        randn(7, heads, dim, size, dtype=state_dtype),
        dtype,
        first="state",
        hidden_states=randn(ROWS, heads, dim, dtype=dtype),
        dt=of_heads(randn(ROWS, heads, dtype=dtype) * 9),
        A=(-randn(heads).abs())[:, None, None].expand(heads, dim, size),
        B=randn(ROWS, groups, size, dtype=dtype),
        C=randn(ROWS, groups, size, dtype=dtype),
        D=of_heads(randn(heads, dtype=dtype)),
        dt_bias=of_heads(randn(heads, dtype=dtype)),
        dt_softplus=True,
        z=randn(ROWS, heads, dim, dtype=dtype) if gated else None,
    )


@each_value_of(shape=[(24, 16), (300, 5)], state_dtype=DTYPES, dtype=DTYPES)
def test_mamba(shape: tuple[int, int], state_dtype: torch.dtype, dtype: torch.dtype) -> None:
    channels, size = shape
    check(
        modeling_jamba.mamba_selective_state_update,
        mamba.selective_state_update,
        randn(7, channels, size, dtype=state_dtype),
        dtype,
        first="state",
        hidden_states=randn(channels, ROWS, dtype=dtype).T,
        dt=randn(ROWS, channels, dtype=dtype) * 9,
        A=-randn(channels, size).abs(),
        B=randn(ROWS, size, dtype=dtype),
        C=randn(ROWS, size, dtype=dtype),
        D=randn(channels, dtype=dtype),
        dt_bias=randn(channels),
        dt_softplus=True,
        z=randn(ROWS, channels, dtype=dtype),
    )


def test_what_they_do_not_compute_is_refused() -> None:
    x, states = randn(ROWS, 6, 1), SlotStates(randn(7, 6, 4), SLOTS)
    with pytest.raises(ValueError, match="the activation tanh"):
        causal_conv1d_update(x, states, randn(6, 4), activation="tanh")
    with pytest.raises(ValueError, match="float64"):
        causal_conv1d_update(x.double(), states, randn(6, 4).double())
    with pytest.raises(ValueError, match="one token"):
        causal_conv1d_update(randn(ROWS, 6, 2), states, randn(6, 4))


def recurrent(family: str, **settings: Any) -> list[StatefulForward]:
    return recurrent_of(load_model(tiny_model(STATEFUL[family]()), EngineConfig(device="cpu", **settings)).model)


def recurrent_of(model: PreTrainedModel) -> list[StatefulForward]:
    return [forward for _, forward in stateful_modules(model)]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3_5_text", "float32"),
        ("kimi_linear", "float32"),
        ("lfm2", "bfloat16"),
        ("jamba", "float32"),
        *(
            pytest.param(family, dtype, marks=pytest.mark.slow)
            for family, dtype in [
                ("qwen3_5_text", "bfloat16"),
                ("kimi_linear", "bfloat16"),
                ("lfm2", "float32"),
                ("jamba", "bfloat16"),
                ("falcon_h1", "float32"),
                ("falcon_h1", "bfloat16"),
            ]
        ),
    ],
)
def test_models_decode_by_them(family: str, dtype: str) -> None:
    assert all(forward.in_place is not None for forward in recurrent(family, dtype=dtype))
    assert all(forward.in_place is None for forward in recurrent(family, fuse_ops=False))


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(STATEFUL.keys() - {"zamba"}))  # it splits its states by head
def test_all_models_decode_by_them(family: str) -> None:
    assert all(forward.in_place is not None for forward in recurrent(family))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_module_whose_function_computes_something_else_keeps_it(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = modeling_qwen3_5.torch_recurrent_gated_delta_rule

    def other(*args: Any, **kwargs: Any) -> Any:
        out, state = plain(*args, **kwargs)
        return out + out.abs().mean() / 4, state

    model = load_model(
        tiny_model(STATEFUL["qwen3_5_text"]()), EngineConfig(device="cpu", dtype=dtype, fuse_ops=False)
    ).model
    with monkeypatch.context() as patched:
        patched.setattr(modeling_qwen3_5, "torch_recurrent_gated_delta_rule", other)
        fuse_states(model)
        assert all(forward.in_place is None for forward in recurrent_of(model))
    fuse_states(model)
    assert all(forward.in_place is not None for forward in recurrent_of(model))
