"""A loaded model and its properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from roseplay.config import RECOMMENDED, SamplingParams
from roseplay.core.info import Choice
from roseplay.model.kv_cache import LayerShape
from roseplay.model.states import StateShapes


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run on paged attention."""

    model: PreTrainedModel  # the model in eval mode, on ``device``, in ``dtype``
    config: Any  # the transformers config
    name: str  # the name, path or hub id that was asked for
    device: torch.device
    dtype: torch.dtype
    max_model_len: int  # longest prompt plus answer, in tokens
    eos_token_ids: frozenset[int]  # ids of tokens that end an answer, from the generation config, else from the config
    kv_shapes: dict[int, LayerShape]  # what each attention layer caches, by ``layer_idx``
    # The state that each recurrent layer keeps for a request, by ``layer_idx``; empty for most models.
    state_shapes: StateShapes
    vocab_size: int  # number of logits per token
    num_embeddings: int  # number of token ids that the model accepts
    # Number of parameters of the whole model, even if this process has only a part; tied ones count once.
    num_parameters: int
    weight_bytes: int  # bytes of the whole model's parameters that one step reads
    choices: tuple[Choice, ...] = ()  # how the loaded model differs from the published checkpoint
    # Fields of ``SamplingParams`` from the generation config.
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)


def sampling_defaults(model: PreTrainedModel) -> dict[str, float | int]:
    """Returns the fields of ``SamplingParams`` that the model's generation config sets; ``do_sample: false`` is temperature 0.

    A value that ``SamplingParams`` rejects is left out.
    """
    config = getattr(model, "generation_config", None)
    if config is None:
        return {}
    values: dict[str, Any] = {name: getattr(config, name, None) for name in RECOMMENDED}
    if getattr(config, "do_sample", None) is False:
        values["temperature"] = 0.0
    return {name: value for name, value in values.items() if _taken(name, value)}


def _taken(name: str, value: Any) -> bool:
    try:
        return value is not None and SamplingParams(**{name: value}) is not None
    except ValueError:
        return False
