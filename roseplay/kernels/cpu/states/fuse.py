"""Makes modules with a recurrent state compute with the kernels of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from roseplay.kernels.cpu.states import mamba, mamba2
from roseplay.kernels.cpu.states.chunked_delta_rule import chunk_gated_delta_rule
from roseplay.kernels.cpu.states.chunked_mamba2 import chunk_scan
from roseplay.kernels.cpu.states.convolution import causal_conv1d_fn, causal_conv1d_update
from roseplay.kernels.cpu.states.delta_rule import recurrent_gated_delta_rule
from roseplay.kernels.replace_states import decode_by, prefill_by

# By their names in the modelling files of transformers.
_SINGLE_TOKENS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_update": causal_conv1d_update,
    "torch_recurrent_gated_delta_rule": recurrent_gated_delta_rule,
    "recurrent_kimi_delta_attention": recurrent_gated_delta_rule,
    "mamba_selective_state_update": mamba.selective_state_update,
    "mamba2_selective_state_update": mamba2.selective_state_update,
}
_PACKED_ROWS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": causal_conv1d_fn,
    "torch_chunk_gated_delta_rule": chunk_gated_delta_rule,
    "mamba2_chunk_scan": chunk_scan,
}


def fuse_states(model: PreTrainedModel) -> None:
    """Make modules compute decodes and prompts with the kernels, where outputs and states stay the same."""
    decode_by(model, _SINGLE_TOKENS)
    prefill_by(model, _PACKED_ROWS)
