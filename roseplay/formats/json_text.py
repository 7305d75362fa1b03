"""Writes compact JSON, and parses JSON from others: requests strictly, servers' answers tolerantly."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from roseplay.formats.text import shown

# Reused: making one takes longer than encoding most values.
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # Python joins pairs when parsing


def encode(value: Any) -> bytes:
    """Returns compact JSON in UTF-8. Numbers that are not finite, which JSON lacks, become null, as in JavaScript."""
    try:
        text = _ENCODER.encode(value)
    except ValueError:
        text = _ENCODER.encode(_TOLERANT.decode(json.dumps(value)))
    return text.encode("utf-8", "replace")


class RepeatedNameError(ValueError):
    """An object has a name twice, so that one of its values would be dropped."""


def unique_names(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON; the ``object_pairs_hook`` that raises ``RepeatedNameError``."""
    value = dict(pairs)
    if len(value) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise RepeatedNameError(f"{shown(name)} occurs twice in one object")
    return value


def strict_json(text: bytes, name: str = "the body") -> Any:
    """Parse JSON as the standard defines it: UTF-8, no NaN or infinity, no unpaired surrogate, each name only once.

    Args:
        name: of the text, for errors.

    Raises:
        ValueError: a one-line description of the problem.
    """
    try:
        value = json.loads(
            text.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=unique_names
        )
        if b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"{name} has half of a surrogate pair in a text: send valid Unicode") from None
    except _NotFiniteError as error:
        raise ValueError(f"{name} has a number that JSON does not have, {error}: send finite numbers") from None
    except RepeatedNameError as error:
        raise ValueError(f"{name} is ambiguous, {error}: keep one") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{name} is not JSON: send a JSON object") from None
    return value


def tolerant_json(data: bytes) -> Any:
    """Parse JSON from a server that may be faulty, replacing values that could cause errors later.

    Numbers that are not finite become ``None``; unpaired surrogates and invalid UTF-8 become U+FFFD.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        value = _TOLERANT.decode(data.decode("utf-8-sig", "replace"))
        if b"\\u" in data:
            written = json.dumps(value, ensure_ascii=False)
            if _LONE_SURROGATE.search(written):
                value = json.loads(_LONE_SURROGATE.sub("\ufffd", written))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def json_object(value: Any, name: str, example: str) -> dict[str, Any]:
    """Returns an object that was sent as such or as JSON text; raises ``ValueError`` with its ``name`` for others."""
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name} are not JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a JSON object, such as {example}")
    return dict(value)


class _NotFiniteError(Exception):
    pass


def _refuse_constant(name: str) -> NoReturn:
    raise _NotFiniteError(name)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NotFiniteError(text[:20])
    return value


def _finite_or_none(text: str) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


_TOLERANT = json.JSONDecoder(parse_float=_finite_or_none, parse_constant=lambda _: None)
