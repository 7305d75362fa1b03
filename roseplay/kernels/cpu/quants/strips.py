"""A weight in strips, the order in which products read ggml's quantized blocks.

A strip has a block of 32 outputs for each 32 inputs. The block begins with its numbers, four consecutive inputs of an
output side by side: ``[8, 32, 4]`` bytes, or ``[4, 32, 4]`` for numbers of four bits, with the last 16 inputs in the upper
halves. Then come float16 scales ``[scales, 32]``, and minima ``[32]`` if the format has any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from roseplay.model import huge_pages
from roseplay.model.block_tensor import BlockTensor
from roseplay.model.ggml_blocks import BLOCK, FORMATS, Blocks, Format

STRIP = 32  # outputs
_CHUNK = 32 * STRIP  # outputs that are laid out at a time
_FITS = 4  # how often numbers of four bits are rounded: the error of more is hardly less


class Strips:
    """A weight in strips, which a linear layer and an embedding may share.

    Args:
        weight: ``[out, in]``, in blocks or plain; a plain one is rounded to blocks.
        kind: ggml's name of the blocks' type.
    """

    def __init__(self, weight: torch.Tensor, kind: str) -> None:
        self.outer, self.inner = weight.shape
        self.kind, self.dtype = kind, weight.dtype
        self.form, parse = FORMATS[kind]

        def read(first: int, last: int) -> Blocks:
            if isinstance(weight, BlockTensor):
                return parse(weight.blocks(first, last))
            return rounded(weight.detach()[first:last].float().numpy(), kind)

        self.packed = lay_out(self.form, self.outer, -(-self.inner // BLOCK) * BLOCK, read)

    @property
    def saved_bytes(self) -> int:
        """Bytes that a step reads less than from a plain weight."""
        return self.outer * self.inner * self.dtype.itemsize - self.packed.numel()


def rounded(weight: Any, kind: str) -> Blocks:
    """Returns float32 ``weight [rows, in]`` rounded to blocks of Q8_0, within half a scale, or of Q4_1, with little squared
    error. Raises ``OverflowError`` if a scale or minimum would not be finite."""
    values = np.pad(weight, ((0, 0), (0, -weight.shape[1] % BLOCK))).reshape(len(weight), -1, BLOCK)
    if kind == "Q8_0":
        scales = _not_below(abs(values).max(-1, keepdims=True) / 127)
        return Blocks((_divided(values, scales) + 128).astype(np.uint8), scales)
    numbers, scales, minima = _fitted(values)
    numbers = numbers.astype(np.uint8)
    return Blocks(numbers[..., :16] | numbers[..., 16:] << 4, scales, minima)


def _fitted(values: Any) -> Any:
    """Returns numbers, scales and minima of blocks of Q4_1: at first between each block's extremes, then by least squares
    for the numbers so far, of which each block keeps the best."""
    minima = -_not_below(-values.min(-1, keepdims=True))
    scales = _not_below((values.max(-1, keepdims=True) - minima) / 15)
    best: Any = None
    least: Any = np.inf
    with np.errstate(all="ignore"):  # a block without a line through its numbers keeps what it has
        for _ in range(_FITS):
            numbers = _divided(values - minima, scales).clip(0, 15)
            fit = numbers, scales, minima
            errors = np.square(numbers * scales + minima - values).sum(-1, keepdims=True)
            best = fit if best is None else [np.where(errors < least, *pair) for pair in zip(fit, best, strict=True)]
            least = np.fmin(errors, least)
            apart = numbers - numbers.mean(-1, keepdims=True)
            slopes = (apart * values).sum(-1, keepdims=True) / np.square(apart).sum(-1, keepdims=True)
            minima = (values.mean(-1, keepdims=True) - slopes * numbers.mean(-1, keepdims=True)).astype(np.float16)
            scales = slopes.astype(np.float16)
    return best


def _not_below(values: Any) -> Any:
    """Returns float32 values rounded up to float16, so that no number divided by them is out of range."""
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
        halves = np.where(halves < values, np.nextafter(halves, np.float16(np.inf)), halves)
    if not np.isfinite(halves).all():
        raise OverflowError("numbers that are too large for float16 scales, or not finite")
    return halves


def _divided(values: Any, scales: Any) -> Any:
    scales = scales.astype(np.float32)
    return np.rint(values / np.where(scales > 0, scales, 1))


def number_bytes(form: Format) -> int:
    """Returns the bytes of the numbers of a block in a strip."""
    return BLOCK * STRIP // (2 if form.bits == 4 else 1)


def block_bytes(form: Format) -> int:
    """Returns the bytes of a block in a strip."""
    return number_bytes(form) + 2 * STRIP * (form.scales + (form.offset is None))


def lay_out(form: Format, outputs: int, inputs: int, read: Callable[[int, int], Blocks]) -> torch.Tensor:
    """Returns a weight as uint8 strips ``[strips, blocks, bytes]``, with zeros as outputs beyond ``outputs``.

    Args:
        inputs: a multiple of 32.
        read: returns the blocks of the outputs from a first one to before a last one.
    """
    blocks, count = inputs // BLOCK, -(-outputs // STRIP)
    strips = huge_pages.zeros((count, blocks, block_bytes(form)), torch.uint8)
    for first in range(0, outputs, _CHUNK):
        last = min(first + _CHUNK, outputs)
        rows = read(first, last)
        chunk = strips[first // STRIP : -(-last // STRIP)]
        begin = 0
        for numbers, kind in ((rows.numbers, np.int32), (rows.scales, np.float16), (rows.minima, np.float16)):
            if numbers is None:
                continue
            rows_of = np.ascontiguousarray(numbers).reshape(last - first, blocks, -1).view(kind)
            tensor = torch.from_numpy(np.pad(rows_of, ((0, -(last - first) % STRIP), (0, 0), (0, 0))))
            items = tensor.shape[-1]
            end = begin + items * STRIP * tensor.element_size()
            place = chunk[..., begin:end].view(tensor.dtype).unflatten(-1, (items, STRIP))
            place.copy_(tensor.unflatten(0, (-1, STRIP)).permute(0, 2, 3, 1))
            begin = end
    return strips


def example(form: Format, outputs: int, inputs: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a weight, float32 ``[outputs, inputs]``, and its strips, to compare products and measure them."""
    shape = (outputs, inputs // BLOCK)
    numbers = (np.arange(outputs * inputs) % 251 % 2**form.bits).astype(np.uint8).reshape(*shape, BLOCK)
    scales = np.full((*shape, form.scales), 2.0**-form.bits, np.float16)
    minima = np.full(shape, -0.5, np.float16) if form.offset is None else None
    offset = 2 ** (form.bits - 1) if form.offset is None else form.offset
    weight = (numbers.astype(np.float32) - offset) * np.float32(2.0**-form.bits)
    packed = numbers[..., :16] | numbers[..., 16:] << 4 if form.bits == 4 else numbers

    def read(first: int, last: int) -> Blocks:
        return Blocks(packed[first:last], scales[first:last], None if minima is None else minima[first:last])

    return torch.from_numpy(weight.reshape(outputs, inputs)), lay_out(form, outputs, inputs, read)
