"""Reports progress while a model's weights are read or created."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from torch.nn.modules.module import register_module_parameter_registration_hook

from roseplay.core.progress import Reporter
from roseplay.model.checkpoint_json import StoredTensor, indexed_files, stored_tensors
from roseplay.model.source import Source

_PAGE = 4096  # bytes
_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}  # in safetensors
_ONE_FILE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def checkpoint_files(source: Source) -> list[Path]:
    """Returns the weight files of a directory, or of a hub id in the cache; an empty list if they are not known."""
    directory: Path | None = Path(source.place)
    if not source.local:
        config = try_to_load_from_cache(source.place, "config.json")
        directory = Path(config).parent if isinstance(config, str) else None
    if directory is None:
        return []
    for file, index in zip(_ONE_FILE, _INDEX, strict=True):
        if (directory / file).is_file():
            return [directory / file]
        if (directory / index).is_file():
            return [directory / shard for shard in sorted(indexed_files(directory / index))]
    return []


def bytes_per_number(files: list[Path], otherwise: int, unread: re.Pattern[str] | None = None) -> float:
    """Returns the mean bytes per number in safetensors files, by their headers; ``otherwise`` for other files."""
    numbers = size = 0
    for name, tensor in _read_tensors(files, unread):
        begin, end = tensor["data_offsets"]
        size += end - begin
        numbers += _numbers(name, tensor)
    return size / numbers if numbers else otherwise


def converted_bytes(files: list[Path], dtype: torch.dtype, unread: re.Pattern[str] | None = None) -> int:
    """Returns the bytes that the weights of safetensors files take once converted to ``dtype``.

    Weights that are stored in ``dtype`` already are mapped from the file and do not count.
    """
    stored = (
        _numbers(name, tensor) for name, tensor in _read_tensors(files, unread) if tensor["dtype"] != _NAMES.get(dtype)
    )
    return sum(stored) * dtype.itemsize


def _read_tensors(files: list[Path], unread: re.Pattern[str] | None) -> Iterator[tuple[str, StoredTensor]]:
    for file in files:
        for name, tensor in stored_tensors(file).items():
            if unread is None or not unread.match(name):
                yield name, tensor


def _numbers(name: str, tensor: StoredTensor) -> int:
    """Returns how many of the model's numbers a stored tensor has: none in scales, two per byte in blocks."""
    if name.endswith(("_scales", "_scale_inv")):
        return 0
    return torch.Size(tensor["shape"]).numel() * (2 if name.endswith("_blocks") else 1)


def _size(file: Path, unread: re.Pattern[str] | None) -> int:
    """Returns the bytes of a file, without tensors whose names match ``unread``."""
    tensors = stored_tensors(file).items() if unread is not None else ()
    skipped = (tensor["data_offsets"] for name, tensor in tensors if unread is not None and unread.match(name))
    return file.stat().st_size - sum(end - begin for begin, end in skipped)


@contextlib.contextmanager
def counting(put: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """While entered, calls ``put`` once for each weight that this thread puts into a module."""
    thread, seen = threading.get_ident(), set[int]()

    def registered(module: torch.nn.Module, name: str, weight: Any) -> None:
        ours = threading.get_ident() == thread and weight is not None and weight.device.type != "meta"
        if ours and id(weight) not in seen:
            seen.add(id(weight))
            put(weight)

    handle = register_module_parameter_registration_hook(registered)
    try:
        yield
    finally:
        handle.remove()


def begin_weights(reporter: Reporter, total: int | None, where: str) -> None:
    """Begin the stage "weights"; if nothing was downloaded, the stage "download" shows ``where`` the weights are."""
    if reporter.stage != "download":
        reporter.begin("download", total, "bytes", where)
        reporter.count(total or 0, total)
    reporter.begin("weights", total, "bytes")


@contextlib.contextmanager
def counting_checkpoint(reporter: Reporter, source: Source, unread: re.Pattern[str] | None = None) -> Iterator[None]:
    """While entered, reports the weights that are read from a checkpoint, in bytes of its files.

    The stage begins with the first weight, since a download may come before. Weights that are mapped from a file are
    touched here, so that a weight is in memory when it is counted.
    """
    if not reporter.heard:
        yield
        return
    ratio = 0.0

    def put(weight: torch.Tensor) -> None:
        nonlocal ratio
        if not ratio:
            ratio = begin(weight.element_size())
        if weight.device.type == "cpu" and weight.is_contiguous():
            weight.detach().view(-1).view(torch.uint8)[::_PAGE].sum()
        reporter.advance(round(weight.numel() * ratio))

    def begin(otherwise: int) -> float:
        files = checkpoint_files(source)
        total = sum(_size(file, unread) for file in files) or None
        begin_weights(reporter, total, "from disk" if source.local else "from the cache on disk")
        return bytes_per_number(files, otherwise, unread)

    with counting(put):
        yield


@contextlib.contextmanager
def counting_random(reporter: Reporter, build: Callable[[], torch.nn.Module]) -> Iterator[None]:
    """While entered, reports the weights that are created; ``build`` is called on the meta device to count them."""
    if not reporter.heard:
        yield
        return
    reporter.begin("weights", unit="bytes", note="random")
    with torch.device("meta"):
        reporter.count(0, sum(weight.nbytes for weight in build().parameters()))
    with counting(lambda weight: reporter.advance(weight.nbytes)):
        yield
