"""Freezes, at load, rotary embeddings whose frequencies depend on the longest position in the batch.

transformers' *dynamic* and *longrope* embeddings choose their frequencies by the longest position of each call. In a
packed batch, one request would change another's keys, and cached keys would not match later ones. So the frequencies
are chosen once, for the longest request that the engine accepts.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FROZEN = "frozen"


def changes_with_length(rope_type: str) -> bool:
    """Returns whether a type of rotary embedding depends on the longest position."""
    return "dynamic" in rope_type or rope_type == "longrope"


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """Returns the sets of rotary parameters in a config: one, or one for each layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        return [parameters]
    return [value for value in parameters.values() if isinstance(value, dict)]


def freeze_rope(model: PreTrainedModel, max_model_len: int) -> None:
    """Set the frequencies of every length-dependent rotary module to those for ``max_model_len`` tokens, permanently.

    Raises ``RuntimeError`` if the config has such an embedding but no module is found that can be frozen.
    """
    frozen = 0
    for module in model.modules():
        types = getattr(module, "rope_type", None)
        if isinstance(types, str) and changes_with_length(types):
            _freeze(module, types, None, max_model_len)
            module.rope_type = FROZEN
            frozen += 1
        elif isinstance(types, dict) and any(changes_with_length(t) for t in types.values()):
            for layer_type, rope_type in types.items():
                if changes_with_length(rope_type):
                    _freeze(module, rope_type, layer_type, max_model_len)
            module.rope_type = {name: FROZEN if changes_with_length(t) else t for name, t in types.items()}
            frozen += 1
    named = {
        p["rope_type"] for p in rope_parameters(model.config.get_text_config()) if changes_with_length(p["rope_type"])
    }
    if named and not frozen:
        raise RuntimeError(f"its {', '.join(sorted(named))} rotary embedding cannot be frozen")


def _freeze(module: torch.nn.Module, rope_type: str, layer_type: str | None, max_model_len: int) -> None:
    prefix = "" if layer_type is None else f"{layer_type}_"
    config: Any = module.config
    if rope_type == "longrope":
        parameters = config.rope_parameters if layer_type is None else config.rope_parameters[layer_type]
        short_until = parameters["original_max_position_embeddings"]
    else:
        short_until = module.original_max_seq_len
    if max_model_len <= short_until:
        return  # the initial frequencies are right for all possible lengths
    current: torch.Tensor = getattr(module, f"{prefix}inv_freq")
    of_layer_type = {} if layer_type is None else {"layer_type": layer_type}
    inv_freq, scaling = ROPE_INIT_FUNCTIONS[rope_type](config, current.device, seq_len=max_model_len, **of_layer_type)
    module.register_buffer(f"{prefix}inv_freq", inv_freq.to(current), persistent=False)
    setattr(module, f"{prefix}attention_scaling", scaling)
