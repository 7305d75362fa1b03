"""ggml's quantized blocks: how their bytes represent weights. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

BLOCK = 32  # inputs
Bytes = Any  # uint8 [rows, stored blocks, bytes of one]


@dataclass(frozen=True, slots=True)
class Format:
    """How weights are stored: ``scale * (number - offset)``, or ``scale * number + minimum``."""

    bits: int  # of a number, which is unsigned
    scales: int = 1  # scales of an output in a block: one, or two for 16 inputs each
    offset: int | None = None  # None if each output of a block has a minimum

    @classmethod
    def of(cls, bits: int, scales: int, offset: int) -> Format:
        """Returns the format of some ``literals``."""
        return cls(bits, scales, None if offset < 0 else offset)

    @property
    def literals(self) -> tuple[int, int, int]:
        """Its attributes as kernels get them: an offset of -1 stands for None."""
        return self.bits, self.scales, -1 if self.offset is None else self.offset


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of blocks."""

    numbers: Any  # uint8 ``[rows, blocks, 32]``; with four bits ``[rows, blocks, 16]``, the last 16 in the upper halves
    scales: Any  # float16 ``[rows, blocks, scales]``
    minima: Any = None  # float16 ``[rows, blocks]``; None if the format has none


def read_q4_0(of: Bytes) -> Blocks:
    return Blocks(of[..., 2:], _halves(of[..., :2]))


def read_q4_1(of: Bytes) -> Blocks:
    return Blocks(of[..., 4:], _halves(of[..., :2]), _halves(of[..., 2:4]))


def read_q5_0(of: Bytes) -> Blocks:
    return Blocks(_of_five_bits(of[..., 2:]), _halves(of[..., :2]))


def read_q5_1(of: Bytes) -> Blocks:
    return Blocks(_of_five_bits(of[..., 4:]), _halves(of[..., :2]), _halves(of[..., 2:4]))


def read_q8_0(of: Bytes) -> Blocks:
    return Blocks(of[..., 2:] ^ np.uint8(0x80), _halves(of[..., :2]))


def read_q4_k(of: Bytes) -> Blocks:
    numbers = _split(of[..., 16:], 32)
    return Blocks(numbers[..., :16] | numbers[..., 16:] << 4, *_scales_and_minima(of))


def read_q5_k(of: Bytes) -> Blocks:
    fifth = of[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return Blocks(_split(of[..., 48:], 32) | fifth.reshape(len(of), -1, BLOCK) << 4, *_scales_and_minima(of))


def read_q6_k(of: Bytes) -> Blocks:
    upper = of[..., 128:192].reshape(*of.shape[:2], 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scales = of[..., 192:208].view(np.int8) * _halves(of[..., 208:]).astype(np.float32)
    return Blocks(
        _split(of[..., :128], 64) | upper.reshape(len(of), -1, BLOCK) << 4,
        scales.reshape(len(of), -1, 2).astype(np.float16),
    )


# By ggml's names; how each is stored is documented by the package gguf.
FORMATS: dict[str, tuple[Format, Callable[[Bytes], Blocks]]] = {
    "Q4_0": (Format(4, offset=8), read_q4_0),
    "Q4_1": (Format(4), read_q4_1),
    "Q5_0": (Format(5, offset=16), read_q5_0),
    "Q5_1": (Format(5), read_q5_1),
    "Q8_0": (Format(8, offset=128), read_q8_0),
    "Q4_K": (Format(4), read_q4_k),
    "Q5_K": (Format(5), read_q5_k),
    "Q6_K": (Format(6, scales=2, offset=32), read_q6_k),
}


def factors(of: Bytes, kind: str) -> Any:
    """Returns the float16 numbers in blocks that all others are multiplied by, or added to."""
    halves = of.view(np.float16)
    return halves[..., -1:] if kind == "Q6_K" else halves[..., : 2 if FORMATS[kind][0].offset is None else 1]


def _halves(of: Bytes) -> Any:
    return np.ascontiguousarray(of).view(np.float16)


def _split(of: Bytes, together: int) -> Any:
    """Returns ``[rows, blocks, 32]`` numbers of four bits; the lower halves of ``together`` bytes come before the upper."""
    pairs = of.reshape(*of.shape[:2], -1, 1, together) >> np.array([0, 4], np.uint8)[:, None] & 15
    return pairs.reshape(len(of), -1, BLOCK)


def _of_five_bits(of: Bytes) -> Any:
    """Returns ``[rows, blocks, 32]`` numbers; the bytes are their fifth bits, then 16 pairs of the others."""
    fifth = np.unpackbits(of[..., :4], axis=-1, bitorder="little")
    return _split(of[..., 4:], 16) | fifth << 4


def _scales_and_minima(of: Bytes) -> tuple[Any, Any]:
    """Returns the scales and minima of super-blocks of 256: their float16 factors, then 8 numbers of 6 bits for each."""
    factor, offset = (_halves(of[..., at : at + 2]).astype(np.float32) for at in (0, 2))
    lower, middle, upper = np.split(of[..., 4:16], 3, axis=-1)
    scales = np.concatenate([lower & 63, upper & 15 | lower >> 2 & 48], -1) * factor
    minima = np.concatenate([middle & 63, upper >> 4 | middle >> 2 & 48], -1) * -offset
    return tuple(part.reshape(len(of), -1, 1).astype(np.float16) for part in (scales, minima))
