"""Reads the header of a GGUF file: its metadata, and the name, shape and type of each tensor. Reads no weights.

The ``gguf`` package has a reader too, but it makes an array of each token of the vocabulary, which takes seconds. Lists
of models, checks and the tokenizer need the header at once.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class GgufError(ValueError):
    """A file cannot be read as GGUF; the message says why in one line, without the file's name."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file.

    Attributes:
        shape: dimensions, outermost first.
        type: ggml's number for the format that the tensor is stored in.
        offset: offset of its first byte in the file.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the metadata.

    Attributes:
        value: a number, a string, or a list of numbers. A list of strings is represented by its length, unless
            ``read_header`` was asked for its content.
        type: ggml's number for the type of the value, or of an array's elements.
    """

    value: Any
    type: int
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of one file."""

    file: Path
    metadata: dict[str, Value]
    tensors: tuple[StoredTensor, ...]

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value of the metadata."""
        found = self.metadata.get(key)
        return default if found is None else found.value

    @property
    def architecture(self) -> str:
        return str(self.get("general.architecture", ""))


def is_gguf(file: Path) -> bool:
    """Returns whether a file begins with GGUF's magic bytes, whatever its name."""
    try:
        with file.open("rb") as opened:
            return opened.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_header(file: Path, texts: Collection[str] = ()) -> GgufHeader:
    """Read a file's header.

    Args:
        texts: keys of the lists of strings to read; of other lists of strings only the length is read.

    Raises:
        GgufError: the file is not a GGUF file, has an unsupported version, or is truncated.
        OSError: the file cannot be opened.
    """
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise GgufError("it is not a GGUF file")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Cursor(data).header(file, texts)
            except (struct.error, IndexError, OverflowError, MemoryError, UnicodeDecodeError) as error:
                raise GgufError("its header is truncated or damaged; download the file again") from error


class _Cursor:
    """Reads a file from its beginning to the end of its header."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC)

    def header(self, file: Path, texts: Collection[str]) -> GgufHeader:
        (version,) = self._numbers("I")
        if version & 0xFFFF == 0:
            raise GgufError("its bytes are in big-endian order, which is not supported")
        if version not in _VERSIONS:
            raise GgufError(f"it has version {version} of the format; 2 and 3 are supported")
        num_tensors, num_values = self._numbers("QQ")
        metadata: dict[str, Value] = {}
        for _ in range(num_values):
            key = self._text()
            metadata[key] = self._value(key in texts)
        tensors = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata["general.alignment"].value if "general.alignment" in metadata else 32
        begin = -(-self._at // max(1, alignment)) * max(1, alignment)
        return GgufHeader(
            file, metadata, tuple(StoredTensor(name, shape, kind, begin + at) for name, shape, kind, at in tensors)
        )

    def _numbers(self, format: str) -> tuple[Any, ...]:
        found = struct.unpack_from("<" + format, self._data, self._at)
        self._at += struct.calcsize("<" + format)
        return found

    def _text(self) -> str:
        (length,) = self._numbers("Q")
        self._skip(length)
        return self._data[self._at - length : self._at].decode("utf-8")

    def _skip(self, length: int) -> None:
        self._at += length
        if self._at > len(self._data):
            raise IndexError

    def _value(self, wanted: bool) -> Value:
        (kind,) = self._numbers("I")
        if kind != _ARRAY:
            return Value(self._text() if kind == _STRING else self._numbers(_format(kind))[0], kind)
        kind, length = self._numbers("IQ")
        if kind != _STRING:
            return Value(list(self._numbers(f"{length}{_format(kind)}")), kind, True)
        if wanted:
            return Value([self._text() for _ in range(length)], kind, True)
        for _ in range(length):
            self._skip(*self._numbers("Q"))
        return Value(length, kind, True)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        (num_dimensions,) = self._numbers("I")
        shape = self._numbers(f"{num_dimensions}Q")
        kind, offset = self._numbers("IQ")
        return name, shape[::-1], kind, offset


def _format(kind: int) -> str:
    if kind not in _FORMATS:
        raise GgufError(f"its header has a value of the unknown type {kind}")
    return _FORMATS[kind]
