"""Rotary embeddings that depend on the longest position of the batch, frozen at load.

transformers' *dynamic* and *longrope* embeddings choose their frequencies from the longest position of each call.
In a packed batch that would let one request change another's keys, and keys already cached would not fit those that
come after. So the frequencies are chosen once, from the longest request that the engine accepts.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

FROZEN = "frozen"


def changes_with_length(rope_type: str) -> bool:
    return "dynamic" in rope_type or rope_type == "longrope"


def rope_parameters(config: Any) -> list[dict[str, Any]]:
    """A config's sets of rotary parameters: one, or one a layer type."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        return [parameters]
    return [value for value in parameters.values() if isinstance(value, dict)]


def freeze_rope(model: PreTrainedModel, max_model_len: int) -> None:
    """Give every length-dependent rotary module the frequencies of ``max_model_len`` tokens, for good.

    Raises ``RuntimeError`` when the config names such an embedding and no module is found that can be frozen.
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
        return  # the frequencies it starts with are those of every length that can occur
    current: torch.Tensor = getattr(module, f"{prefix}inv_freq")
    of_layer_type = {} if layer_type is None else {"layer_type": layer_type}
    inv_freq, scaling = ROPE_INIT_FUNCTIONS[rope_type](config, current.device, seq_len=max_model_len, **of_layer_type)
    module.register_buffer(f"{prefix}inv_freq", inv_freq.to(current), persistent=False)
    setattr(module, f"{prefix}attention_scaling", scaling)
