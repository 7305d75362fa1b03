"""A loaded model with what is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from roseplay.core.info import Choice
from roseplay.model.kv_cache import LayerShape
from roseplay.model.states import StateShapes


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run on paged attention.

    Attributes:
        model: in eval mode, on ``device``, in ``dtype``.
        config: the transformers config.
        name: the name, path or hub id that was asked for.
        max_model_len: longest prompt plus answer, in tokens.
        eos_token_ids: from the generation config, else from the config.
        kv_shapes: what each attention layer caches, by ``layer_idx``.
        state_shapes: what each layer with a recurrent state keeps for a request, by ``layer_idx``; empty for most models.
        vocab_size: logits of a token; ``num_embeddings``: token ids that the model accepts.
        num_parameters: tied parameters count once; ``weight_bytes``: bytes of parameters that one step reads. Both are of the
            whole model, also where this process has a part of it.
        sampling_defaults: fields of ``SamplingParams`` from the generation config.
        choices: what was made of the checkpoint that is not as it was published.
    """

    model: PreTrainedModel
    config: Any
    name: str
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    eos_token_ids: frozenset[int]
    kv_shapes: dict[int, LayerShape]
    state_shapes: StateShapes
    vocab_size: int
    num_embeddings: int
    num_parameters: int
    weight_bytes: int
    choices: tuple[Choice, ...] = ()
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)
