"""Serves the text part of models that also read images, as a model of its own.

The part is loaded as a plain causal language model, so the weights for images are not read. Some text parts have no
such class in transformers, because their rotary embeddings use positions within an image. These are loaded as the
family that they derive from: for text, all of a token's positions are the same, and so are the embeddings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, Qwen2Config, Qwen3Config

from roseplay.core.info import Choice
from roseplay.model.errors import refuse

# Tests compare these with the output of the whole models.
SERVED = ("gemma3", "llava", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_vl")
_FAMILY = {"qwen2_vl_text": Qwen2Config, "qwen2_5_vl_text": Qwen2Config, "qwen3_vl_text": Qwen3Config}
# Maps names of weights in such checkpoints, old and new, to names in the text part.
KEYS = {r"^(model\.)?language_model\.lm_head\.": "lm_head.", r"^(model\.)?language_model\.(model\.)?": "model."}
NOT_TEXT = re.compile(r"^(model\.)?(visual|vision_tower|vision_model|multi_modal_projector)\.")


@dataclass(frozen=True, slots=True)
class TextPart:
    """The part of a checkpoint that is served."""

    config: Any  # config of a causal language model
    whole: str  # class name of the whole model
    alone: bool = True  # whether only this part is read; otherwise the whole model is loaded, and the rest is not used

    @property
    def choice(self) -> Choice:
        return Choice("checkpoint", f"only the text part of {self.whole} is served; images are refused")


def text_part(config: Any, *, name: str) -> TextPart | None:
    """Returns the text part of a model that also reads images; None for other models.

    Raises ``UnsupportedModelError`` if the text part of such a model is not supported.
    """
    text = config.get_text_config()
    if text is config:
        return None
    whole = (config.architectures or [config.model_type])[0]
    if config.model_type not in SERVED:
        if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:  # probed like any other language model
            return TextPart(config, whole, alone=False) if getattr(config, "vision_config", None) is not None else None
        served = ", ".join(SERVED)
        raise refuse(name, f"{config.model_type} is multimodal; of such models, only the text of {served} is served")
    tied = bool(getattr(config, "tie_word_embeddings", False))
    if text.model_type in _FAMILY:
        values = {key: value for key, value in text.to_dict().items() if key != "model_type"}
        values["rope_parameters"] = _plain_rope(values["rope_parameters"])
        text = _FAMILY[text.model_type].from_dict(values)
    text.tie_word_embeddings = tied
    text.dtype = getattr(text, "dtype", None) or getattr(config, "dtype", None)
    if getattr(config, "quantization_config", None) is not None:
        text.quantization_config = config.quantization_config
    return TextPart(text, whole)


def _plain_rope(parameters: dict[str, Any]) -> dict[str, Any]:
    plain = {key: value for key, value in parameters.items() if not key.startswith("mrope_")}
    return {**plain, "rope_type": "default"} if plain.get("rope_type") == "mrope" else plain
