"""Models in GGUF files, the format of llama.cpp: which files a model has, and whether they can be read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from roseplay.model.errors import refuse
from roseplay.model.gguf_header import GgufError, GgufHeader, StoredTensor, read_header
from roseplay.model.gguf_names import part_names
from roseplay.own_models import gguf_packages_missing


@dataclass(frozen=True)
class GgufModel:
    """A model in one GGUF file, or in several parts."""

    headers: tuple[GgufHeader, ...]  # of each file, in order; the first one has the metadata

    @property
    def first(self) -> GgufHeader:
        return self.headers[0]

    @cached_property
    def tensors(self) -> list[StoredTensor]:
        return [tensor for header in self.headers for tensor in header.tensors]

    @cached_property
    def types(self) -> list[str]:
        """Names of the types that the weights are stored in, the most frequent first."""
        numbers: dict[int, int] = {}
        for tensor in self.tensors:
            numbers[tensor.type] = numbers.get(tensor.type, 0) + tensor.numel
        return [_type(kind).name for kind in sorted(numbers, key=lambda kind: -numbers[kind])]

    @property
    def stored_bytes(self) -> int:
        """Bytes of all weights in the files."""
        return sum(map(_stored_bytes, self.tensors))

    def converted_bytes(self, itemsize: int, kept: Collection[str] = ()) -> int:
        """Returns the bytes of the weights in memory: ``itemsize`` each, as in the file for types of blocks that are
        ``kept``; experts' are float32 while they are read."""

        def size(tensor: StoredTensor) -> int:
            if "_exps." in tensor.name:
                return tensor.numel * 4
            return _stored_bytes(tensor) if _type(tensor.type).name in kept else tensor.numel * itemsize

        return sum(map(size, self.tensors))


def open_gguf(file: Path, *, name: str, lists: Collection[str] = ()) -> GgufModel:
    """Read the headers of a model's files, and check that all weights are there and of types that can be converted.

    Args:
        lists: see ``read_header``.

    Raises ``UnsupportedModelError``, with a message of one line that names the model, if anything is missing, damaged
    or not supported.
    """
    missing = gguf_packages_missing()
    if missing:
        raise refuse(name, f"reading GGUF files needs {' and '.join(missing)}: pip install 'roseplay[gguf]'")
    files = [file.with_name(part) for part in part_names(file.name)]
    absent = [part.name for part in files if not part.is_file()]
    if absent:
        raise refuse(name, f"{len(absent)} of its {len(files)} parts are missing, {absent[0]} for one")
    headers = []
    for part in files:
        try:
            headers.append(read_header(part, lists))
        except (GgufError, OSError) as error:
            raise refuse(name, f"{part.name}: {error}" if len(files) > 1 else str(error)) from error
    model = GgufModel(tuple(headers))
    _check(model, name)
    return model


def _check(model: GgufModel, name: str) -> None:
    expected = model.first.get("split.count", 0)
    if not model.first.architecture:
        raise refuse(name, "its header names no architecture")
    if not model.tensors:
        raise refuse(name, "it has no weights")
    if expected > 1 and expected != len(model.headers):
        raise refuse(
            name, f"it is one of {expected} parts: keep them together, under the names that they were made with"
        )
    for header in model.headers:
        _check_tensors(header, name)


def _check_tensors(header: GgufHeader, name: str) -> None:
    import gguf

    size, end = header.file.stat().st_size, 0
    for tensor in header.tensors:
        kind = _type(tensor.type)
        if not _is_converted(tensor.type):
            raise refuse(name, f"its tensor {tensor.name} has the type {kind.name}, which cannot be converted")
        if tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            raise refuse(name, f"its tensor {tensor.name} has rows of {tensor.shape[-1]:,} numbers, not whole blocks")
        if end and tensor.offset != -(-end // header.alignment) * header.alignment:
            raise refuse(name, f"its tensor {tensor.name} does not begin where the one before it ends")
        end = tensor.offset + _stored_bytes(tensor)
    if end > size:
        raise refuse(name, f"{header.file.name} is truncated, {size:,} of {end:,} bytes: download it again")


@dataclass(frozen=True, slots=True)
class _UnknownType:
    name: str


def _type(kind: int) -> Any:
    import gguf

    try:
        return gguf.GGMLQuantizationType(kind)
    except ValueError:
        return _UnknownType(f"number {kind}")


@cache
def _is_converted(kind: int) -> bool:
    import gguf

    quant = _type(kind)
    if quant not in gguf.GGML_QUANT_SIZES:
        return False
    if quant.name in ("F32", "F16"):
        return True
    try:
        gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[quant][1]), np.uint8), quant)
    except NotImplementedError:
        return False
    return True


def _stored_bytes(tensor: StoredTensor) -> int:
    import gguf

    numbers, size = gguf.GGML_QUANT_SIZES[_type(tensor.type)]
    return int(tensor.numel // numbers * size)
