"""Checkpoints with quantized weights: two formats are dequantized while they are read, others are refused.

A config that names a method is not all there is: some checkpoints have scales beside their weights and say nothing, and
transformers then reads the numbers without them. So the names of the stored tensors are looked at as well.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import FineGrainedFP8Config
from transformers.quantizers import auto
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

from roseplay.core.info import Choice
from roseplay.model.errors import refuse

# Methods that transformers dequantizes without other packages, with the names of what they store beside the weights.
DEQUANTIZED = {"fp8": r"weight_scale_inv$", "mxfp4": r"(gate_up|down)_proj_(blocks|scales)$"}
_STORED = re.compile(
    r"(weight_scale(_inv|_2)?|weight_packed|qweight|qzeros|absmax|quant_map|SCB|proj_blocks|proj_scales)$"
)
_ADVICE = "give the checkpoint that is not quantized, or one in fp8 or mxfp4"


class _DequantizingFp8(FineGrainedFP8HfQuantizer):
    """Without the check for a package that only quantized layers need, and for a GPU."""

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        assert isinstance(self.quantization_config, FineGrainedFP8Config)
        self.quantization_config.dequantize = True


def method_of(config: Any) -> str | None:
    """Returns by which method the weights of a transformers config are quantized; None where they are not."""
    found = _settings(config)
    if found is None:
        return None
    if found.get("load_in_4bit") or found.get("load_in_8bit"):
        return "bitsandbytes"
    method = found.get("quant_method")
    return str(getattr(method, "value", method) or "an unnamed method")


def how_read(config: Any, dtype: torch.dtype) -> tuple[Choice, ...]:
    """Returns what is made of a checkpoint whose weights are quantized."""
    method = method_of(config)
    if method is None:
        return ()
    return (Choice("checkpoint", f"{method}, dequantized to {str(dtype).removeprefix('torch.')} while it was read"),)


def check_method(config: Any, *, name: str) -> None:
    """Raise ``UnsupportedModelError`` when the weights are quantized by a method that is not dequantized here."""
    method = method_of(config)
    if method is not None and method not in DEQUANTIZED:
        raise refuse(name, f"its weights are quantized with {method}, which is not supported; {_ADVICE}")


def check_stored(names: Iterable[str], method: str | None, *, name: str) -> None:
    """Raise ``UnsupportedModelError`` when stored tensors belong to another quantization than ``method``, or to any."""
    known = re.compile(DEQUANTIZED[method]) if method is not None else None
    other = next((key for key in names if _STORED.search(key) and not (known and known.search(key))), None)
    if other is not None:
        said = "which its config does not mention" if method is None else f"but not as {method} is stored"
        raise refuse(name, f"its weights are quantized, {said} ({other}); {_ADVICE}")


@contextlib.contextmanager
def dequantizing(config: Any) -> Iterator[None]:
    """While entered, a model that is read with this config, whose method is known, becomes one of plain weights."""
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


def stored_tensors(file: Path) -> dict[str, Any]:
    """Returns what the header of a safetensors file says of each tensor; nothing for a file that is no such file."""
    if file.suffix != ".safetensors":
        return {}
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    except (OSError, ValueError, OverflowError, MemoryError):  # who reads the weights says what is wrong with it
        return {}
    header.pop("__metadata__", None)
    return dict(header)


def _settings(config: Any) -> dict[str, Any] | None:
    for part in (config, config.get_text_config()):
        found = getattr(part, "quantization_config", None)
        if found is not None:
            return dict(found if isinstance(found, dict) else found.to_dict())
    return None
