"""Decides from the config, before any weight is read, which models can be served; refuses the others with a reason."""

from __future__ import annotations

from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

from roseplay.model.errors import refuse
from roseplay.model.stateful import keeps_only_states, keeps_states

# Families whose packed, paged and chunked logits the tests compare with eager attention. Others are probed when loaded.
PROVEN = frozenset(
    {
        "cohere2", "deepseek_v3", "exaone4", "gemma", "gemma2", "gemma3_text", "glm4", "gpt2", "gpt_neox", "gpt_oss",
        "granite", "llama", "mistral", "mixtral", "nemotron", "olmo2", "opt", "phi", "phi3", "qwen2", "qwen3",
        "qwen3_moe", "smollm3", "starcoder2",
    }
)  # fmt: skip

# Layer types that are attention. Other layers are supported if transformers' cache has layers for their states.
ATTENTION_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention"})


_CAUSAL = (None, False, "vision")  # values of ``use_bidirectional_attention``


def check_config(config: Any, *, name: str) -> None:
    """Raises ``UnsupportedModelError`` if a model of this transformers config cannot be served, whatever its class."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise refuse(name, f"{kind} is an encoder-decoder; only decoders with a causal LM head are supported")
    text = config.get_text_config()
    other_layers = set(getattr(text, "layer_types", None) or ()) - ATTENTION_LAYERS
    if other_layers and not keeps_states(config):
        raise refuse(
            name, f"{kind} has {', '.join(sorted(map(str, other_layers)))} layers, which are not plain attention"
        )
    if keeps_only_states(config):
        raise refuse(name, f"{kind} has no attention layer; recurrent layers are served beside attention only")
    # "vision": tokens of one image see each other (Gemma 4); here there are no images.
    if not getattr(text, "is_causal", True) or getattr(text, "use_bidirectional_attention", None) not in _CAUSAL:
        raise refuse(name, f"this {kind} attends in both directions")


def find_class(config: Any, *, name: str, trust_remote_code: bool) -> type | None:
    """Returns the model class of a config; None for remote code, which comes with the checkpoint.

    Raises ``UnsupportedModelError`` if there is no such class.
    """
    entry: Any = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    model_class: type | None = entry[0] if isinstance(entry, tuple) else entry
    if model_class is not None:
        return model_class
    if trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return None
    raise refuse(name, f"{config.model_type} has no causal language model in transformers")


def class_config(config: Any, model_class: type | None) -> Any:
    """Returns the config that a model class is built from; for models of text and images, this may be the text part."""
    own = getattr(model_class, "config_class", None)
    return config.get_text_config() if own is not None and config.sub_configs.get("text_config") is own else config


def check_class(model_class: type, config: Any, *, name: str) -> None:
    """Raises ``UnsupportedModelError`` if a model class keeps a private state, or its attention cannot be replaced.

    A class whose states are in transformers' cache is accepted here and probed, whether or not it claims to support
    attention backends.
    """
    kind = config.model_type
    if keeps_states(config):
        return
    if getattr(model_class, "_is_stateful", False):
        raise refuse(name, f"{kind} keeps a recurrent or convolutional state, and not in transformers' cache")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise refuse(name, f"{kind} does its own attention in transformers (no attention backend support)")


def needs_probe(config: Any, model_class: type | None) -> bool:
    """Returns whether a model has to be probed: it is not transformers' own class of a proven family."""
    return (
        config.model_type not in PROVEN
        or keeps_states(config)
        or model_class is None
        or not model_class.__module__.startswith("transformers.models.")
    )
