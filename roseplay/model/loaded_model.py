"""What the loader makes, and everything that computes takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from roseplay.model.kv_cache import LayerShape


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run on paged attention.

    Attributes:
        model: in eval mode, on ``device``, in ``dtype``.
        config: transformers' own.
        name: as it was asked for.
        max_model_len: longest prompt plus answer, in tokens.
        eos_token_ids: of the generation config, else of the config.
        kv_shapes: what each attention layer caches, by ``layer_idx``.
        vocab_size: logits that a token gives; ``num_embeddings``: token ids that may go in.
        num_parameters: tied ones counted once; ``weight_bytes``: what one step reads of them.
    """

    model: PreTrainedModel
    config: Any
    name: str
    device: torch.device
    dtype: torch.dtype
    max_model_len: int
    eos_token_ids: frozenset[int]
    kv_shapes: dict[int, LayerShape]
    vocab_size: int
    num_embeddings: int
    num_parameters: int
    weight_bytes: int
