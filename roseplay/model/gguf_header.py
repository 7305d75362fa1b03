"""Reads the header of a GGUF file: its metadata, and the name, shape and type of each tensor. Reads no weights.

The ``gguf`` package has a reader too, but it makes an array of each token of the vocabulary, which takes seconds. Lists
of models, checks and the tokenizer need the header at once.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Sequence
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
_FAR = 2**40  # limit for numbers in lists, and for those without a rule of their own
_SHORT = 4096  # up to this length, lists of numbers are always read: they have one for each layer
_MOST = {
    "names, texts and numbers": 2**21,  # Gemma's vocabulary: 260,000 tokens, scores and types each, 580,000 merges
    "tensors": 2**16,
    "bytes in a name": 256,
    "bytes in a text": 2**20,
    "dimensions in a tensor": 4,
    "numbers in a tensor": 2**48,
}


class _Rule(NamedTuple):
    """What a value may be: its type (of a list, that of its elements), and the least and greatest number, or length of
    a text or list. ``is_list`` is None if it may be a list or not."""

    type: str
    least: float
    most: float
    is_list: bool | None = False

    def check(self, key: str, found: Value) -> None:
        """Raises ``GgufError`` if a value is not what the rule says."""
        values = found.value if isinstance(found.value, list) else []
        size = len(found.value) if isinstance(found.value, str | list) else found.value
        # Lists for layers may be infinite: Gemma 3n has such thresholds.
        unbounded = self.type == "value" and found.type in (6, 12)
        fits = self.least <= size <= self.most
        fits = fits and (unbounded or all(isinstance(item, str) or abs(item) <= _FAR for item in values))
        if not fits or found.type not in _TYPES[self.type] or self.is_list not in (None, found.is_array):
            what = f"{'list of ' if self.is_list else ''}{self.type}"
            limits = f"{'length ' if self.is_list or self.type == 'text' else ''}{self.least:,} to {self.most:,}"
            raise GgufError(f"its header has {str(found.value)[:40]!r} as {key!r}: use a {what}, {limits}")


# The metadata that is used. ``*`` stands for the architecture, alone for all its other keys.
_RULES = {
    "general.architecture": _Rule("text", 1, 64),
    "general.name": _Rule("text", 0, 1000),
    "general.type": _Rule("text", 0, 64),
    "general.alignment": _Rule("whole number", 8, 2**20),  # and a power of two
    "general.file_type": _Rule("whole number", 0, 2**16),
    **{f"general.sampling.{name}": _Rule("number", 0, 1000) for name in ("temp", "penalty_repeat")},
    **{f"general.sampling.{name}": _Rule("number", 0, 1) for name in ("top_p", "min_p")},
    "general.sampling.top_k": _Rule("number", -1, 2**32),
    "split.count": _Rule("whole number", 0, MOST_PARTS),
    "tokenizer.chat_template": _Rule("text", 0, 2**20),
    **{f"tokenizer.ggml.{name}": _Rule("text", 0, 64) for name in ("model", "pre")},
    "tokenizer.ggml.tokens": _Rule("text", 1, 2**21, True),
    "tokenizer.ggml.merges": _Rule("text", 0, 2**21, True),
    **{f"tokenizer.ggml.{name}": _Rule("number", 0, 2**21, True) for name in ("scores", "precompiled_charsmap")},
    "tokenizer.ggml.token_type": _Rule("whole number", 0, 2**21, True),
    **{f"tokenizer.ggml.add_{name}": _Rule("flag", 0, 1) for name in ("bos_token", "eos_token", "space_prefix")},
    # Also less than the vocabulary, see ``_check_ids``.
    **{f"tokenizer.ggml.{name}_token_id": _Rule("whole number", 0, 2**21) for name in SPECIAL},
    "*.block_count": _Rule("whole number", 1, 10_000),
    "*.context_length": _Rule("whole number", 1, 2**31 - 1),
    "*.embedding_length": _Rule("whole number", 1, 2**20),
    "*.vocab_size": _Rule("whole number", 1, 2**21),
    "*": _Rule("value", -_FAR, _FAR, None),
}
# Some converters write an id for a token that the vocabulary lacks; nothing depends on these two.
_OPTIONAL, _NO_TOKEN = ("tokenizer.ggml.unknown_token_id", "tokenizer.ggml.padding_token_id"), (-1, 2**32 - 1)


class GgufError(ValueError):
    """A file cannot be read as GGUF; the message says why in one line, without the file's name."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a file."""

    name: str
    shape: tuple[int, ...]  # dimensions, outermost first
    type: int  # ggml's number for the format that the tensor is stored in
    offset: int  # offset of its first byte in the file

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the metadata."""

    value: Any  # a number, a string, or a list; the length of a list that was not read
    type: int  # ggml's number for the type of the value, or of an array's elements
    is_array: bool = False


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of one file."""

    file: Path
    metadata: dict[str, Value]
    tensors: tuple[StoredTensor, ...]
    alignment: int  # bytes; each tensor begins at a multiple of it, counted from the first

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value of the metadata."""
        value = self.metadata.get(key)
        return default if value is None else value.value

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
            raise GgufError(f"its header has {alignment:,} as 'general.alignment': use a power of two")
        begin = -(-self._at // alignment) * alignment
        stored = tuple(StoredTensor(name, shape, kind, begin + at) for name, shape, kind, at in tensors)
        header = GgufHeader(file, metadata, stored, alignment)
        _check_ids(header)
        return header

    def _metadata(self, num_values: int, lists: Collection[str]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for _ in range(num_values):
            key = self._text("bytes in a name")
            values[key] = self._value(key in lists)
        named = values.get("general.architecture")
        metadata = {}
        for key, value in values.items():
            space, _, rest = key.partition(".")
            of_model = named is not None and space == named.value
            rule = _RULES.get(key) or (_RULES.get(f"*.{rest}", _RULES["*"]) if of_model else None)
            if rule is not None and not (key in _OPTIONAL and value.value in _NO_TOKEN):
                rule.check(key, value)
                metadata[key] = value
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

    def _text(self, limit: str = "bytes in a text") -> str:
        length = _limited(self._skip_text(), limit)
        self._count(1 + length // 16)
        try:
            return self._data[self._at - length : self._at].decode("utf-8")
        except UnicodeDecodeError:
            raise GgufError(_DAMAGED) from None

    def _value(self, wanted: bool) -> Value:
        """Read a value, but only the length of a long text, and of a long list or one of texts that is not ``wanted``."""
        (kind,) = self._numbers("I")
        is_array = kind == _ARRAY
        kind, length = self._numbers("IQ") if is_array else (kind, 1)
        items: Sequence[Any]
        if kind == _STRING and is_array and not wanted:
            self._count(length)
            for _ in range(length):
                self._skip_text()
            return Value(length, kind, True)
        if kind == _STRING:
            begin, size = self._at, self._skip_text() if length else 0
            if size > _MOST["bytes in a text"]:
                return Value(size, kind)
            self._at = begin
            items = [self._text() for _ in range(length)]
        elif kind in _FORMATS:
            begin = self._take(length * struct.calcsize("<" + _FORMATS[kind]))
            if length > _SHORT and not wanted:
                return Value(length, kind, True)
            self._count(length)
            items = struct.unpack_from(f"<{length}{_FORMATS[kind]}", self._data, begin)
        else:
            raise GgufError(f"its header has a value of the unknown type {kind}")
        return Value(list(items) if is_array else items[0], kind, is_array)

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text("bytes in a name")
        (num_dimensions,) = self._numbers("I")
        shape = self._numbers(f"{_limited(num_dimensions, 'dimensions in a tensor')}Q")
        if not shape or not _limited(prod(shape), "numbers in a tensor"):
            raise GgufError(f"its header has the tensor {name!r} without numbers, which is not supported")
        kind, offset = self._numbers("IQ")
        return name, shape[::-1], kind, offset


def _limited(count: int, what: str) -> int:
    if count > _MOST[what]:
        raise GgufError(f"its header has {count:,} {what}; at most {_MOST[what]:,} are supported")
    return count


def _check_ids(header: GgufHeader) -> None:
    """Raises ``GgufError`` for the id of a special token that is not in the vocabulary."""
    tokens = header.get("tokenizer.ggml.tokens", 2**21)
    sizes = [tensor.shape[0] for tensor in header.tensors if tensor.name == "token_embd.weight"]
    vocabulary = min([tokens if isinstance(tokens, int) else len(tokens), *sizes])
    for key in (f"tokenizer.ggml.{name}_token_id" for name in SPECIAL):
        if header.get(key, 0) >= vocabulary:
            raise GgufError(
                f"its header has {header.get(key)} as {key!r}, but its vocabulary has {vocabulary:,} tokens"
            )
