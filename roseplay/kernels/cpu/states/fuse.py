"""Makes modules with a recurrent state compute single tokens with the kernels of this folder."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from roseplay.kernels.cpu.states import mamba, mamba2
from roseplay.kernels.cpu.states.convolution import causal_conv1d_update
from roseplay.kernels.cpu.states.delta_rule import recurrent_gated_delta_rule
from roseplay.kernels.replace_modules import random_like, same, with_globals
from roseplay.model.stateful import StatefulForward, stateful_modules
from roseplay.model.states import StatePool

# By their names in the modelling files of transformers. The kernels have the arguments and results of these functions
# of the libraries causal-conv1d, flash-linear-attention and mamba-ssm.
_KERNELS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_update": causal_conv1d_update,
    "torch_recurrent_gated_delta_rule": recurrent_gated_delta_rule,
    "recurrent_kimi_delta_attention": recurrent_gated_delta_rule,
    "mamba_selective_state_update": mamba.selective_state_update,
    "mamba2_selective_state_update": mamba2.selective_state_update,
}
_ROWS = 3  # of the comparison


@torch.inference_mode()
def update_in_place(model: PreTrainedModel) -> None:
    """Make modules decode with the kernels if both agree on random inputs and states; leave others as they are."""
    dim = model.get_input_embeddings().embedding_dim
    for module, stateful in stateful_modules(model):
        forward = _with_kernels(module)
        if forward is not None and _agrees(stateful, forward, dim, next(model.parameters())):
            stateful.in_place = forward


def _with_kernels(module: nn.Module) -> Callable[..., Any] | None:
    """Returns the module's forward with kernels in place of its file's functions; None if it calls none of them."""
    forward = inspect.unwrap(type(module).forward)
    if not isinstance(forward, FunctionType) or not _KERNELS.keys() & set(forward.__code__.co_names):
        return None
    return MethodType(with_globals(forward, _KERNELS), module)


def _agrees(stateful: StatefulForward, forward: Callable[..., Any], dim: int, like: torch.Tensor) -> bool:
    """Returns whether ``forward`` computes the same outputs and states as the module."""
    x, slots = random_like((_ROWS, 1, dim), like), torch.arange(_ROWS, 0, -1)
    expected, found = (_random_pool(stateful) for _ in range(2))
    try:
        outputs = stateful.decode(x, slots, expected)
        stateful.in_place = forward
        pairs = [(outputs, stateful.decode(x, slots, found))]
    except (AttributeError, RuntimeError, TypeError, ValueError):  # the kernels do not support the module's arguments
        return False
    finally:
        stateful.in_place = None
    pairs += zip(expected.read(stateful.layer, slots), found.read(stateful.layer, slots), strict=True)
    # States are computed from numbers of the model's dtype, whatever their own, and sums in another order.
    units = 32 if like.dtype == torch.float32 else 4
    return all(same(a.to(like.dtype), b.to(like.dtype), units=units) for a, b in pairs)


def _random_pool(stateful: StatefulForward) -> StatePool:
    """Returns a pool of random states, equal in every call."""
    pool = StatePool({stateful.layer: stateful.shapes}, _ROWS + 1, torch.device("cpu"))
    states = [random_like((_ROWS + 1, *s.shape), torch.empty(0, dtype=s.dtype)) / 3 for s in stateful.shapes]
    pool.write(stateful.layer, torch.arange(_ROWS + 1), states)
    return pool
