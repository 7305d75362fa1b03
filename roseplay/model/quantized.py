"""Checkpoints with quantized weights: two formats are dequantized while they are read, others are refused.

The method named in the config is not enough to go by: some checkpoints store scales beside their weights without saying
so, and transformers then ignores the scales. So the names of the stored tensors are checked as well.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from transformers import FineGrainedFP8Config
from transformers.quantizers import auto
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from roseplay.core.info import Choice
from roseplay.model.errors import refuse

# Methods that transformers dequantizes without other packages, and the names of the tensors that they store.
DEQUANTIZED = {"fp8": r"weight_scale_inv$", "mxfp4": r"(gate_up|down)_proj_(blocks|scales)$"}
_STORED = re.compile(
    r"(weight_scale(_inv|_2)?|weight_packed|qweight|qzeros|absmax|quant_map|SCB|proj_blocks|proj_scales)$"
)
_ADVICE = "give the checkpoint that is not quantized, or one in fp8 or mxfp4"


class _DequantizingFp8(FineGrainedFP8HfQuantizer):
    """Skips the checks for a GPU and for a package that only quantized layers need."""

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        assert isinstance(self.quantization_config, FineGrainedFP8Config)
        self.quantization_config.dequantize = True


def method_of(config: Any) -> str | None:
    """Returns the method by which the weights of a transformers config are quantized; None if they are not."""
    settings = _settings(config)
    if settings is None:
        return None
    if settings.get("load_in_4bit") or settings.get("load_in_8bit"):
        return "bitsandbytes"
    method = settings.get("quant_method")
    return str(getattr(method, "value", method) or "an unnamed method")


def how_read(config: Any, dtype: torch.dtype) -> tuple[Choice, ...]:
    """Returns how a checkpoint with quantized weights is read; nothing for other checkpoints."""
    method = method_of(config)
    if method is None:
        return ()
    return (Choice("checkpoint", f"{method}, dequantized to {str(dtype).removeprefix('torch.')} while it was read"),)


def check_method(config: Any, *, name: str) -> None:
    """Raises ``UnsupportedModelError`` if the weights are quantized by a method that cannot be dequantized here."""
    method = method_of(config)
    if method is not None and method not in DEQUANTIZED:
        raise refuse(name, f"its weights are quantized with {method}, which is not supported; {_ADVICE}")


def check_stored(names: Iterable[str], method: str | None, *, name: str) -> None:
    """Raises ``UnsupportedModelError`` if stored tensors belong to a quantization other than ``method``."""
    pattern = re.compile(DEQUANTIZED[method]) if method is not None else None
    other = next((key for key in names if _STORED.search(key) and not (pattern and pattern.search(key))), None)
    if other is not None:
        detail = "which its config does not mention" if method is None else f"but not as {method} is stored"
        raise refuse(name, f"its weights are quantized, {detail} ({other}); {_ADVICE}")


@contextlib.contextmanager
def dequantizing(config: Any) -> Iterator[None]:
    """While entered, a model that is read with this config is dequantized, if its weights are quantized."""
    method = method_of(config)
    if method is None:
        yield
        return
    for part in (config, config.get_text_config()):
        if getattr(part, "quantization_config", None) is not None:
            part.quantization_config = {**part.quantization_config, "dequantize": True}
    before = auto.AUTO_QUANTIZER_MAPPING["fp8"]
    auto.AUTO_QUANTIZER_MAPPING["fp8"] = _DequantizingFp8
    try:
        yield
    finally:
        auto.AUTO_QUANTIZER_MAPPING["fp8"] = before


def unify_dtype(model: torch.nn.Module, config: Any, dtype: torch.dtype) -> None:
    """Convert dequantized weights to ``dtype``, in place: transformers 5.17 leaves those of mxfp4 in bfloat16."""
    if method_of(config) is None:
        return
    for weight in model.parameters():
        if weight.dtype == torch.bfloat16:
            weight.data = weight.data.to(dtype)


def _settings(config: Any) -> dict[str, Any] | None:
    for part in (config, config.get_text_config()):
        settings = getattr(part, "quantization_config", None)
        if settings is not None:
            return dict(settings if isinstance(settings, dict) else settings.to_dict())
    return None
