"""Functions that take the place of transformers' in layers with a recurrent state; a device's kernels compute their results.

They have the arguments and results of the functions of the libraries causal-conv1d, flash-linear-attention and mamba-ssm,
except that states are ``SlotStates``. Each is made of a function of checked arguments, and raises ``ValueError`` for those
that no kernel computes. Kernels update the states in place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from roseplay.model.states import PackedInputs, PackedRows, SlotStates


def check(fits: bool, what: str) -> None:
    """Raises ``ValueError`` that names ``what`` has no kernel, unless it fits."""
    if not fits:
        raise ValueError(f"there is no kernel for {what}")


def check_unpacked(options: dict[str, Any]) -> None:
    """Raises ``ValueError`` if these options mean that a row holds several sequences."""
    check(all(options.get(name) is None for name in ("cu_seqlens", "seq_idx")), "packed sequences")


def check_activation(activation: str | None) -> None:
    check(activation in (None, "silu", "swish"), f"the activation {activation}")


def packed_rows(states: SlotStates) -> PackedRows:
    """Returns the rows of a packed batch; raises ``ValueError`` if the states are those of single tokens."""
    if states.rows is None:
        raise ValueError("there is no kernel for rows whose tokens are not known")
    return states.rows


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """The gated delta rule (Yang et al. 2024, arXiv:2412.06464) on normalised queries and keys.

    Attributes:
        query, key: ``[rows, tokens, k_heads, k_dim]``, not normalised yet; ``value``: ``[rows, tokens, v_heads, v_dim]``. Of
            one dtype.
        g: float32, the logarithm of the decay: ``[rows, tokens, v_heads]``, or ``[rows, tokens, v_heads, k_dim]``.
        beta: ``[rows, tokens, v_heads]``.
        states: float32 ``[slots, v_heads, k_dim, v_dim]``.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    states: SlotStates

    @property
    def by_channel(self) -> bool:
        """Whether each number of a key has its own decay (Kimi Delta Attention, arXiv:2510.26692)."""
        return self.g.dim() == 4

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """``v_heads``, value heads per key head, ``k_dim``, ``v_dim``."""
        v_heads, v_dim = self.value.shape[2:]
        return v_heads, v_heads // self.key.shape[2], self.key.shape[3], v_dim


def gated_delta_rule(compute: Callable[[DeltaRule], torch.Tensor]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Returns a function that computes the rule; ``compute`` returns ``[rows, tokens, v_heads, v_dim]`` in the query's dtype."""

    @wraps(compute)
    def apply(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: SlotStates,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rule, states = DeltaRule(query, key, value, g, beta, initial_state), initial_state.tensor
        v_heads, _, k_dim, v_dim = rule.sizes
        check(use_qk_l2norm_in_kernel and v_heads % key.shape[2] == 0, "no norm, or some other number of heads")
        check(query.dtype == key.dtype == value.dtype and query.shape == key.shape, "queries unlike keys and values")
        check(states.shape[1:] == (v_heads, k_dim, v_dim) and states.is_contiguous(), f"states of {states.shape}")
        check(states.dtype == g.dtype == torch.float32, "states or decays in half precision")
        per_head = (*value.shape[:3], k_dim) if rule.by_channel else value.shape[:3]
        check(g.shape == per_head and beta.shape == value.shape[:3], f"decays of {g.shape}, gates of {beta.shape}")
        check_unpacked(kwargs)
        return compute(rule), states

    return apply


@dataclass(frozen=True, slots=True)
class ChunkScan:
    """Mamba 2 (Dao and Gu 2024, arXiv:2405.21060): ``state * exp(dt A) + dt x B^T``, times C, plus ``D x``.

    Attributes:
        x: ``[tokens, heads, dim]``; ``B``, ``C``: ``[tokens, groups, size]``, each shared by the heads of a group.
        dt: ``[tokens, heads]``, to which ``dt_bias`` ``[heads]`` is added before its softplus and the ``limits``.
        A: float32 ``[heads]``; ``D``: ``[heads]``.
        states: ``[slots, heads, dim, size]``, with the rows.
    """

    x: torch.Tensor
    dt: torch.Tensor
    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    D: torch.Tensor
    dt_bias: torch.Tensor
    limits: tuple[float, float]
    states: SlotStates

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """``heads``, heads per group, ``dim``, ``size``."""
        heads, dim = self.x.shape[1:]
        return heads, heads // self.B.shape[1], dim, self.B.shape[2]


def mamba2_chunk_scan(compute: Callable[[ChunkScan], torch.Tensor]) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Returns a function that computes a packed batch; ``compute`` returns float32 ``[1, tokens, heads, dim]``."""

    @wraps(compute)
    def apply(
        hidden_states: torch.Tensor,
        dt: torch.Tensor,
        A: torch.Tensor,
        B: torch.Tensor,
        C: torch.Tensor,
        chunk_size: int,  # does not change the results
        D: torch.Tensor,
        dt_bias: torch.Tensor,
        initial_states: SlotStates,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        z: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (batch, _, heads, dim), (groups, size), states = hidden_states.shape, B.shape[2:], initial_states.tensor
        check(
            batch == 1 and dt_softplus and return_final_states and z is None, "several batches, no softplus, or a gate"
        )
        check(
            heads % groups == 0 and states.shape[1:] == (heads, dim, size), f"{groups} groups, states of {states.shape}"
        )
        check(
            states.is_contiguous() and A.dtype == torch.float32 and dt.dtype == dt_bias.dtype,
            "decays in half precision",
        )
        check_unpacked(kwargs)
        x, dt, B, C = (tensor[0] for tensor in (hidden_states, dt, B, C))
        A, D, dt_bias = (tensor.contiguous() for tensor in (A, D, dt_bias))
        limits = (float(dt_limit[0]), float(dt_limit[1]))
        return compute(ChunkScan(x, dt, A, B, C, D, dt_bias, limits, initial_states)), states

    return apply


@dataclass(frozen=True, slots=True)
class Convolution:
    """A causal depthwise convolution of packed rows, whose states are the last inputs before those of each row.

    Attributes:
        x: ``[tokens, channels]``, whose rows are contiguous.
        weight: ``[channels, width]``; ``bias``: ``[channels]`` or None.
        silu: whether the result is the SiLU of the sums.
        states: ``[slots, channels, inputs]``, with the rows.
    """

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    silu: bool
    states: SlotStates


def causal_conv1d_fn(compute: Callable[[Convolution], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Returns a function that convolves packed rows, of ``PackedInputs``; ``compute`` returns ``[tokens, channels]``."""

    @wraps(compute)
    def apply(
        hidden_states: PackedInputs,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        check(isinstance(hidden_states, PackedInputs), "inputs without states")
        x, states = hidden_states.tensor, hidden_states.states.tensor
        check(x.shape[0] == 1 and states.shape[1] == x.shape[1] and states.is_contiguous(), f"inputs of {x.shape}")
        check(states.shape[2] >= weight.shape[-1] - 1, f"{states.shape[2]} inputs before a token")
        check(weight.is_contiguous() and (bias is None or bias.is_contiguous()), "scattered weights")
        check_activation(activation)
        by_token = x[0].T if x.stride(1) == 1 else x[0].T.contiguous()
        return compute(Convolution(by_token, weight, bias, activation is not None, hidden_states.states)).T[None]

    return apply
