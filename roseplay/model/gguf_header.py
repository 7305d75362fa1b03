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
from typing import Any, NamedTuple

from roseplay.model.gguf_names import MOST_PARTS

MAGIC = b"GGUF"
SPECIAL = ("bos", "eos", "eot", "eom", "unknown", "padding")  # tokens whose ids are read
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_WHOLE = {0, 1, 2, 3, 4, 5, 10, 11}
_TYPES = {"text": {_STRING}, "flag": {7}, "whole number": _WHOLE, "number": {*_WHOLE, 6, 12}, "value": {*_FORMATS, 8}}
_DAMAGED = "its header is truncated or damaged; download the file again"
_FAR = 2.0**40  # limit for numbers in lists, and for those without a rule of their own
_MOST = {
    "names, texts and numbers": 2**21,  # the largest vocabularies have 800,000
    "tensors": 2**16,
    "bytes in a name": 256,
    "bytes in a text": 2**20,
    "dimensions in a tensor": 4,
    "numbers in a tensor": 2**48,
    "numbers in a list that is always read": 4096,  # lists with a number for each layer
}


class _Rule(NamedTuple):
    """What a value may be.

    Attributes:
        type: a key of ``_TYPES``; of a list, that of its elements.
        least, most: of a number, or of the length of a text or list.
        is_list: None if it may be either.
    """

    type: str
    least: float
    most: float
    is_list: bool | None = False

    def check(self, key: str, found: Value) -> None:
        """Raises ``GgufError`` if a value is not what the rule says."""
        values = found.value if isinstance(found.value, list) else []
        size = len(found.value) if isinstance(found.value, str | list) else found.value
        fits = self.least <= size <= self.most and all(isinstance(one, str) or abs(one) <= _FAR for one in values)
        if not fits or found.type not in _TYPES[self.type] or self.is_list not in (None, found.is_array):
            what = f"a {'list of ' if self.is_list else ''}{self.type}{'s' if self.is_list else ''}"
            limits = f"{'of length ' if self.is_list or self.type == 'text' else ''}{self.least:,} to {self.most:,}"
            raise GgufError(f"its header has {str(found.value)[:40]!r} as {key!r}: it must be {what}, {limits}")


# The metadata that is read; all other is skipped. ``*`` stands for the architecture.
_SPACES = ("general", "split", "tokenizer")
_RULES = {
    "general.architecture": _Rule("text", 1, 64),
    "general.name": _Rule("text", 0, 1000),
    "general.type": _Rule("text", 0, 64),
    "general.alignment": _Rule("whole number", 8, 2**20),  # a power of two
    "general.file_type": _Rule("whole number", 0, 2**16),
    "general.sampling.temp": _Rule("number", 0, 1000),
    "general.sampling.top_k": _Rule("number", -1, 2**32),
    "general.sampling.top_p": _Rule("number", 0, 1),
    "general.sampling.min_p": _Rule("number", 0, 1),
    "general.sampling.penalty_repeat": _Rule("number", 0, 1000),
    "split.count": _Rule("whole number", 0, MOST_PARTS),
    "tokenizer.chat_template": _Rule("text", 0, 2**20),
    "tokenizer.ggml.model": _Rule("text", 0, 64),
    "tokenizer.ggml.pre": _Rule("text", 0, 64),
    "tokenizer.ggml.tokens": _Rule("text", 1, 2**21, True),
    "tokenizer.ggml.merges": _Rule("text", 0, 2**21, True),
    "tokenizer.ggml.scores": _Rule("number", 0, 2**21, True),
    "tokenizer.ggml.token_type": _Rule("whole number", 0, 2**21, True),
    "tokenizer.ggml.precompiled_charsmap": _Rule("whole number", 0, 2**21, True),
    "tokenizer.ggml.add_bos_token": _Rule("flag", 0, 1),
    "tokenizer.ggml.add_eos_token": _Rule("flag", 0, 1),
    "tokenizer.ggml.add_space_prefix": _Rule("flag", 0, 1),
    # ... and less than the vocabulary
    **{f"tokenizer.ggml.{name}_token_id": _Rule("whole number", 0, 2**21 - 1) for name in SPECIAL},
    "*.block_count": _Rule("whole number", 1, 10_000),
    "*.context_length": _Rule("whole number", 1, 2**31 - 1),
    "*.embedding_length": _Rule("whole number", 1, 2**20),
    "*.vocab_size": _Rule("whole number", 1, 2**21),
    "*": _Rule("value", -_FAR, _FAR, None),
}


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
        value: a number, a string, or a list. A list that was not read is represented by its length.
        type: ggml's number for the type of the value, or of an array's elements.
    """

    value: Any
    type: int
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of one file.

    Attributes:
        alignment: bytes; each tensor begins at a multiple of it, counted from the first.
    """

    file: Path
    metadata: dict[str, Value]
    tensors: tuple[StoredTensor, ...]
    alignment: int

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


def read_header(file: Path, lists: Collection[str] = ()) -> GgufHeader:
    """Read a file's header.

    Args:
        lists: keys of the lists to read; of other long lists, and of those of strings, only the length is read.

    Raises:
        GgufError: the file is not a GGUF file, has an unsupported version, or is truncated, or a value of its header is
            not one that ``_RULES`` allows.
        OSError: the file cannot be opened.
    """
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise GgufError("it is not a GGUF file")
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Cursor(data).header(file, lists)


class _Cursor:
    """Reads a file from its beginning to the end of its header."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC)
        self._items = 0

    def header(self, file: Path, lists: Collection[str]) -> GgufHeader:
        (version,) = self._numbers("I")
        if version & 0xFFFF == 0:
            raise GgufError("its bytes are in big-endian order, which is not supported")
        if version not in _VERSIONS:
            raise GgufError(f"it has version {version} of the format; 2 and 3 are supported")
        num_tensors, num_values = self._numbers("QQ")
        metadata = self._metadata(num_values, lists)
        tensors = [self._tensor() for _ in range(_limited(num_tensors, "tensors"))]
        alignment = metadata["general.alignment"].value if "general.alignment" in metadata else 32
        if alignment & (alignment - 1):
            raise GgufError(f"its header has {alignment:,} as 'general.alignment': it must be a power of two")
        begin = -(-self._at // alignment) * alignment
        stored = tuple(StoredTensor(name, shape, kind, begin + at) for name, shape, kind, at in tensors)
        header = GgufHeader(file, metadata, stored, alignment)
        _check_ids(header)
        return header

    def _metadata(self, num_values: int, lists: Collection[str]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for _ in range(num_values):
            key = self._text("bytes in a name")
            found = self._value(_rule(key) is not None, key in lists)
            if found is not None:
                values[key] = found
        architecture = values["general.architecture"].value if "general.architecture" in values else ""
        spaces = tuple(f"{space}." for space in (*_SPACES, architecture))
        metadata = {key: found for key, found in values.items() if key.startswith(spaces)}
        for key, found in metadata.items():
            _RULES[str(_rule(key))].check(key, found)
        return metadata

    def _take(self, size: int) -> int:
        """Move on by ``size`` bytes; returns where they begin."""
        begin, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise GgufError(_DAMAGED)
        return begin

    def _count(self, items: int) -> None:
        self._items = _limited(self._items + items, "names, texts and numbers")

    def _numbers(self, format: str) -> tuple[Any, ...]:
        return struct.unpack_from("<" + format, self._data, self._take(struct.calcsize("<" + format)))

    def _skip_text(self) -> int:
        """Move behind a text; returns its length in bytes."""
        (length,) = self._numbers("Q")
        self._take(length)
        return int(length)

    def _text(self, what: str = "bytes in a text") -> str:
        self._count(1)
        length = _limited(self._skip_text(), what)
        try:
            return self._data[self._at - length : self._at].decode("utf-8")
        except UnicodeDecodeError:
            raise GgufError(_DAMAGED) from None

    def _value(self, has_rule: bool, wanted: bool) -> Value | None:
        """Read a value, or the length of a long list that is not ``wanted``; returns None if it has no rule."""
        (kind,) = self._numbers("I")
        is_array = kind == _ARRAY
        kind, length = self._numbers("IQ") if is_array else (kind, 1)
        if kind == _STRING:
            if has_rule and (wanted or not is_array):
                found: Any = [self._text() for _ in range(length)]
                return Value(found if is_array else found[0], kind, is_array)
            self._count(length)
            for _ in range(length):
                self._skip_text()
        elif kind in _FORMATS:
            format = _FORMATS[kind]
            begin = self._take(length * struct.calcsize("<" + format))
            if has_rule and (wanted or length <= _MOST["numbers in a list that is always read"]):
                self._count(length)
                found = list(struct.unpack_from(f"<{length}{format}", self._data, begin))
                return Value(found if is_array else found[0], kind, is_array)
        else:
            raise GgufError(f"its header has a value of the unknown type {kind}")
        return Value(length, kind, True) if has_rule else None

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text("bytes in a name")
        (num_dimensions,) = self._numbers("I")
        shape = self._numbers(f"{_limited(num_dimensions, 'dimensions in a tensor')}Q")
        if not shape or not _limited(prod(shape), "numbers in a tensor"):
            raise GgufError(_DAMAGED)
        kind, offset = self._numbers("IQ")
        return name, shape[::-1], kind, offset


def _limited(count: int, what: str) -> int:
    if count > _MOST[what]:
        raise GgufError(f"its header has {count:,} {what}; at most {_MOST[what]:,} are supported")
    return count


def _rule(key: str) -> str | None:
    """Returns the key of a value's rule in ``_RULES``; None if it has none."""
    space, _, rest = key.partition(".")
    if space in _SPACES:
        return key if key in _RULES else None
    return f"*.{rest}" if f"*.{rest}" in _RULES else "*"


def _check_ids(header: GgufHeader) -> None:
    """Raises ``GgufError`` for the id of a special token that is not in the vocabulary."""
    tokens = header.get("tokenizer.ggml.tokens", _MOST["names, texts and numbers"])
    sizes = [tensor.shape[0] for tensor in header.tensors if tensor.name == "token_embd.weight"]
    vocabulary = min([tokens if isinstance(tokens, int) else len(tokens), *sizes])
    for name in SPECIAL:
        key = f"tokenizer.ggml.{name}_token_id"
        if header.get(key, 0) >= vocabulary:
            raise GgufError(
                f"its header has {header.get(key)} as {key!r}, but its vocabulary has {vocabulary:,} tokens"
            )
