"""A weight in ggml's quantized blocks, as a tensor: it is dequantized only where an operation needs its numbers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from torch.utils._pytree import tree_map

from roseplay.model.errors import refuse
from roseplay.model.ggml_blocks import factors

_of_thread = threading.local()
_ZEROS = (functional.linear, functional.embedding)
_KEEPING = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class BlockTensor(torch.Tensor):
    """A matrix ``[out, in]`` whose rows are stored in blocks.

    Kernels that know the format read the blocks. Every other operation dequantizes the whole matrix.
    """

    stored: Any  # uint8 ``[rows, bytes of a row]``, for instance a part of a mapped file
    kind: str  # ggml's name of the blocks' type
    order: Any  # the stored row of each row of the matrix; None if they have the same order

    @staticmethod
    def __new__(cls, stored: Any, kind: str, order: Any, dtype: torch.dtype) -> BlockTensor:
        numbers, size = _sizes(kind)
        shape = len(stored), stored.shape[1] // size * numbers
        tensor: BlockTensor = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype)
        tensor.stored, tensor.kind, tensor.order = stored, kind, order
        return tensor

    def blocks(self, first: int, last: int) -> Any:
        """Returns the stored blocks of some of the matrix' rows, uint8 ``[rows, blocks, bytes]``."""
        rows = self.stored[first:last] if self.order is None else self.stored[self.order[first:last]]
        return np.ascontiguousarray(rows).reshape(len(rows), -1, _sizes(self.kind)[1])

    def dequantized(self) -> torch.Tensor:
        """Returns the matrix as a plain tensor."""
        import gguf
        from gguf.quants import dequantize  # ``gguf.dequantize`` is replaced while a file is read

        rows = self.blocks(0, len(self)).reshape(len(self), -1)
        return torch.from_numpy(dequantize(rows, gguf.GGMLQuantizationType[self.kind])).to(self.dtype)

    def __repr__(self, **options: Any) -> str:  # type: ignore[override]
        return f"BlockTensor({list(self.shape)}, {self.kind}, {self.dtype})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ZEROS and getattr(_of_thread, "shapes_only", False):
            x, weight = args[:2]
            shape = (*x.shape[:-1], len(weight)) if func is functional.linear else (*x.shape, weight.shape[1])
            return torch.zeros(shape, dtype=weight.dtype)
        with torch._C.DisableTorchFunctionSubclass():  # results are plain tensors
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        kwargs = kwargs or {}
        given = args[0]
        if func in _KEEPING or (func is torch.ops.aten._to_copy.default and _changes_nothing(given, kwargs)):
            return cls(given.stored, given.kind, given.order, given.dtype)
        return func(*tree_map(plain, args), **tree_map(plain, kwargs))


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """While entered, linear layers and embeddings in blocks return zeros: only the shapes of their results count."""
    _of_thread.shapes_only = True
    try:
        yield
    finally:
        _of_thread.shapes_only = False


def kind_of(weight: torch.Tensor) -> str | None:
    """Returns the type of the blocks that a weight is stored in; None for plain weights."""
    return weight.kind if isinstance(weight, BlockTensor) else None


def check_finite(model: torch.nn.Module, *, name: str) -> None:
    """Raises ``UnsupportedModelError`` if a weight has numbers, or scales of its blocks, that are not finite."""
    for key, weight in model.named_parameters():
        if isinstance(weight, BlockTensor):
            weight = torch.tensor(factors(weight.blocks(0, len(weight)), weight.kind))  # type: ignore[assignment]
        if not torch.stack(weight.aminmax()).isfinite().all():
            raise refuse(name, f"{key} has infinite numbers or NaN, its file is damaged: download it again")


def plain(value: Any) -> Any:
    """Returns a weight in blocks dequantized, and anything else as it is."""
    return value.dequantized() if isinstance(value, BlockTensor) else value


def _changes_nothing(given: torch.Tensor, options: dict[str, Any]) -> bool:
    device = options.get("device")
    return options.get("dtype") in (None, given.dtype) and (device is None or torch.device(device).type == "cpu")


def _sizes(kind: str) -> tuple[int, int]:
    """Returns the numbers of a block and its bytes."""
    import gguf

    sizes: tuple[int, int] = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    return sizes
