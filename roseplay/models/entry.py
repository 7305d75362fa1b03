"""What is known about a model before it is loaded: its name, size and type, and why it cannot be served, if so.

Only headers and configs are read, without torch. The loader may still refuse a model that looks fine here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Protocol

from roseplay.config import EngineConfig
from roseplay.extensions import offered
from roseplay.model.checkpoint_json import decoder_config, indexed_files, read_object, stored_tensors
from roseplay.model.context_length import stated_length
from roseplay.model.errors import UnsupportedModelError, reason_of
from roseplay.model.ggml_blocks import FORMATS
from roseplay.model.gguf import GgufModel, open_gguf
from roseplay.model.gguf_header import GgufHeader, read_header
from roseplay.model.gguf_names import model_name, part_names

_DECODERS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_PARTS = ("clip", "mmproj")  # architectures of GGUF files that are only a part of a model
# Other architectures that are refused: encoders, recurrent models, and models with their own kind of attention.
_NOT_SERVED = frozenset(
    {"bert", "nomic-bert", "jina-bert-v2", "t5", "t5encoder", "mamba", "rwkv6", "rwkv7", "bloom", "falcon", "stablelm"}
)
_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "fp8"}
_DEQUANTIZED = ("fp8", "mxfp4")  # methods that the loader supports


@dataclass(frozen=True, slots=True)
class ModelEntry:
    name: str  # the name to display
    model: str  # the argument of ``Engine`` that loads it
    source: str  # where it was found
    size: int = 0  # bytes on disk
    type: str = ""  # how its weights are stored, such as ``bfloat16`` or ``Q4_K_M``; empty if not known
    architecture: str = ""  # its family, such as ``llama``
    parameters: int | None = None  # number of parameters; None if not known
    context: int | None = None  # context length in tokens; None if not known
    weight_bytes: int | None = None  # least memory that its weights take once loaded, on a CPU; None if not known
    # One line that says why it cannot be served, without paths; None if nothing is known to prevent it.
    refused: str | None = None

    def needed_bytes(self, *, on_gpu: bool) -> int | None:
        """Returns ``weight_bytes``; on a GPU, where no weight is left in blocks, at least 2 for each parameter."""
        return max(self.weight_bytes or 0, 2 * self.parameters) if on_gpu and self.parameters else self.weight_bytes


def of_directory(folder: Path, *, name: str, model: str, source: str) -> ModelEntry | None:
    """Returns the entry of a transformers model's directory; None if the model is not a decoder."""
    if not (folder / "config.json").is_file():
        return None
    try:
        return _of_checkpoint(folder, name=name, model=model, source=source)
    except UnsupportedModelError as error:
        return ModelEntry(name, model, source, refused=error.reason)


def _of_checkpoint(folder: Path, *, name: str, model: str, source: str) -> ModelEntry | None:
    stated = read_object(folder / "config.json")
    if not _is_decoder(stated):
        return None
    config, text = decoder_config(stated), decoder_config(stated, text=True)
    files = _weights(folder)
    stored = _stored(files)
    method = _method(config)
    parameters = sum(stored.values()) if stored and method in (None, "fp8") else None
    kind = max(stored, key=lambda one: stored[one]) if stored else _dtype(text, config)
    wide = kind in ("float32", "float64")
    return ModelEntry(
        name=name,
        model=model,
        source=source,
        size=sum(file.stat().st_size for file in files),
        type=method or kind,
        architecture=str(config.get("model_type") or ""),
        parameters=parameters,
        context=_context(text),
        weight_bytes=None if parameters is None else parameters * (4 if wide else 2),
        refused=_refused(folder, files, method),
    )


def of_gguf(file: Path, *, name: str | None = None, model: str | None = None, source: str) -> ModelEntry | None:
    """Returns the entry of a GGUF file, for a split model its first part; None for a file such as a vision encoder."""
    stat = file.stat()
    if (fields := _of_gguf(file, stat.st_mtime_ns, stat.st_size)) is None:
        return None
    entry = {**fields, "name": name or model_name(file), "model": model or str(file), "source": source}
    return ModelEntry(**entry)


@lru_cache(maxsize=1024)
def _of_gguf(file: Path, changed_ns: int, size: int) -> dict[str, Any] | None:
    """Returns the fields read from the file, cached until it changes."""
    parts = [part for part in (file.with_name(name) for name in part_names(file.name)) if part.is_file()]
    try:
        headers = [read_header(part) for part in parts]
    except (ValueError, OSError) as error:
        return {"size": size, "type": "GGUF", "refused": reason_of(error)}
    first, numbers = headers[0], sum(tensor.numel for header in headers for tensor in header.tensors)
    if first.architecture in _PARTS or first.get("general.type") == "mmproj":
        return None
    return {
        "size": sum(part.stat().st_size for part in parts),
        "type": _gguf_type(first),
        "architecture": first.architecture,
        "parameters": numbers,
        "context": first.get(f"{first.architecture}.context_length"),
        "weight_bytes": _gguf_bytes(headers),
        "refused": _gguf_refused(file, first.architecture),
    }


def _gguf_bytes(headers: Sequence[GgufHeader]) -> int | None:
    try:
        return GgufModel(tuple(headers)).converted_bytes(2, FORMATS)
    except ImportError:  # the package gguf is an extra
        return None


def _gguf_refused(file: Path, architecture: str) -> str | None:
    if architecture in _NOT_SERVED:
        return f"models of the architecture {architecture} are not served"
    try:
        open_gguf(file, name="")
    except UnsupportedModelError as error:
        return error.reason
    return None


def _gguf_type(header: GgufHeader) -> str:
    try:
        from gguf import LlamaFileType

        return LlamaFileType(header.get("general.file_type")).name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except (ImportError, ValueError):  # a type that it does not know
        return "GGUF"


# -- directories


def _is_decoder(config: Mapping[str, Any]) -> bool:
    classes = config.get("architectures")
    named = isinstance(classes, list) and any(str(name).endswith(_DECODERS) for name in classes)
    return named and not config.get("is_encoder_decoder")


def _weights(folder: Path) -> list[Path]:
    for pattern in ("*.safetensors", "*.bin"):
        if files := sorted(file for file in folder.glob(pattern) if file.is_file()):
            return files
    return []


def _stored(files: Sequence[Path]) -> dict[str, int]:
    """Returns how many numbers of each type safetensors files hold; empty for other files."""
    counts: dict[str, int] = {}
    for file in files:
        for tensor in stored_tensors(file).values():
            kind = _TYPES.get(tensor["dtype"], tensor["dtype"].lower())
            counts[kind] = counts.get(kind, 0) + prod(tensor["shape"])
    return counts


def _method(config: Mapping[str, Any]) -> str | None:
    """Returns the method by which the weights are quantized; None if they are not."""
    settings = config.get("quantization_config")
    return None if settings is None else settings.get("quant_method") or "quantized"


def _context(config: Mapping[str, Any]) -> int | None:
    """Returns the context length in tokens; dynamic rotary embeddings extend it by their factor."""
    length = stated_length(config.get)
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if length is not None and rope and rope.get("rope_type", rope.get("type")) == "dynamic":
        return int(length * (rope.get("factor") or 1))
    return length


def _dtype(*configs: Mapping[str, Any]) -> str:
    dtypes = (config.get("dtype") or config.get("torch_dtype") for config in configs)
    return str(next(filter(None, dtypes), "")).removeprefix("torch.")


def _refused(folder: Path, files: Sequence[Path], method: str | None) -> str | None:
    if not files:
        return "its weights are not on this machine"
    index = next(folder.glob("*.safetensors.index.json"), None)
    needed = indexed_files(index) if index is not None else set()
    if absent := sorted(name for name in needed if not (folder / name).is_file()):
        return f"{len(absent)} of its {len(needed)} files of weights are missing, {absent[0]} for one"
    if method is not None and method not in _DEQUANTIZED:
        return f"its weights are quantized by {method}, which is not supported; give a checkpoint that is not quantized"
    return None


class HardwareModels(Protocol):
    """What an extension that offers hardware says of models, see ``engine.hardware.Hardware``."""

    def check(self, model: str, config: EngineConfig) -> ModelEntry:
        """Returns a model's entry; raises ``ValueError``, one line, if it is not found, cannot run so or does not fit."""

    def models(self) -> list[ModelEntry]:
        """Returns the bundled models that can run so, the smallest first."""


def hardware_models() -> HardwareModels | None:
    """Returns what an extension says of models on its hardware; None if there is none."""
    return next(iter(offered("hardware")), None)
