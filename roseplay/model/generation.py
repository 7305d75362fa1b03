"""The sampling values that a model's author recommends in its ``generation_config.json``."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from roseplay.config import SamplingParams

_NAMES = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens")


def sampling_defaults(model: PreTrainedModel) -> dict[str, float | int]:
    """Returns the fields of ``SamplingParams`` that the generation config sets; ``do_sample: false`` is temperature 0.

    A value that ``SamplingParams`` rejects is left out.
    """
    given = getattr(model, "generation_config", None)
    if given is None:
        return {}
    values: dict[str, Any] = {name: getattr(given, name, None) for name in _NAMES}
    if getattr(given, "do_sample", None) is False:
        values["temperature"] = 0.0
    return {name: value for name, value in values.items() if _taken(name, value)}


def _taken(name: str, value: Any) -> bool:
    try:
        return value is not None and SamplingParams(**{name: value}) is not None
    except ValueError:
        return False
