"""Makes modules with a recurrent state compute prompts with the kernels of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedModel

from roseplay.kernels.cuda.states.convolution import causal_conv1d_fn
from roseplay.kernels.cuda.states.delta_rule import chunk_gated_delta_rule
from roseplay.kernels.cuda.states.mamba2 import chunk_scan
from roseplay.kernels.replace_states import prefill_by

# By their names in the modelling files of transformers.
_PACKED_ROWS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": causal_conv1d_fn,
    "torch_chunk_gated_delta_rule": chunk_gated_delta_rule,
    "chunk_kimi_delta_attention": chunk_gated_delta_rule,
    "mamba2_chunk_scan": chunk_scan,
}


def fuse_states(model: PreTrainedModel) -> None:
    """Make modules compute the rows of a step with prompts in one call, where outputs and states stay the same."""
    prefill_by(model, _PACKED_ROWS)
