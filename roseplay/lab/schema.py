"""The schema of a result document, and the check of a document against it.

A mapping lists required keys, a list holds the schema of all its items, a tuple the schema of each item, and a function
checks a value by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roseplay.lab.spec import ARMS, MAX_REPEATS

_Check = Callable[[Any, str], None]


def check(value: Any, schema: Any, where: str) -> None:
    """Raises ``ValueError`` that names the place where ``value`` does not match ``schema``."""
    if isinstance(schema, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} should be an object")
        for key, part in schema.items():
            if key not in value:
                raise ValueError(f"{where} lacks {key!r}")
            check(value[key], part, f"{where}, {key}")
    elif isinstance(schema, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} should be a list")
        for index, item in enumerate(value):
            check(item, schema[0], f"{where} {index + 1}")
    elif isinstance(schema, tuple):
        if not isinstance(value, list) or len(value) != len(schema):
            raise ValueError(f"{where} should be a list of {len(schema)}")
        for item, part in zip(value, schema, strict=True):
            check(item, part, where)
    else:
        schema(value, where)


def _number(value: Any, where: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e12:
        raise ValueError(f"{where} should be a number")


def _not_negative(value: Any, where: str) -> None:
    _number(value, where)
    if value < 0:
        raise ValueError(f"{where} should not be below 0")


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str) or len(value) > 2000:
        raise ValueError(f"{where} should be text")


def _or_null(check: _Check) -> _Check:
    return lambda value, where: None if value is None else check(value, where)


def _one_of(*values: Any) -> _Check:
    def check_value(value: Any, where: str) -> None:
        if value not in values:
            raise ValueError(f"{where} should be one of {', '.join(map(str, values))}")

    return check_value


def _plain(value: Any, where: str) -> None:
    """An object of numbers, texts, booleans and nulls."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} should be an object")
    for key, item in value.items():
        if item is not None and not isinstance(item, bool):
            (_text if isinstance(item, str) else _number)(item, f"{where}, {key}")


def _config(value: Any, where: str) -> None:
    _plain(value, where)
    check(value, {"num_blocks": _not_negative, "block_size": _not_negative}, where)


_REQUEST = {
    **dict.fromkeys(("index", "arrival_ms", "prompt_tokens", "completion_tokens", "submit_ms"), _not_negative),
    **dict.fromkeys(("queue_ms", "ttft_ms", "tpot_ms", "e2e_ms", "itl_p99_ms", "itl_max_ms"), _or_null(_not_negative)),
    "reason": _text,
}
_RUN = {
    "arm": _one_of(*ARMS),
    **dict.fromkeys(("repeat", "seconds", "saved_tokens", "preemptions"), _not_negative),
    "requests": [_REQUEST],
    "itl_ms": [_not_negative],
    "steps": [(_number, _number, *[_not_negative] * 5)],
    "tokens_sha256": _text,
}
_ARM = {"label": _text, "knobs": _plain, "config": _config, "differs": [_text]}
DOCUMENT: Mapping[str, Any] = {
    **dict.fromkeys(("id", "created", "scenario", "title", "model", "device", "dtype"), _text),
    "name": _or_null(_text),
    "look": [_text],
    "environment": _plain,
    "seed": _number,
    "repeats": _one_of(*range(1, MAX_REPEATS + 1)),
    "order": [_one_of(*ARMS)],
    "params": _plain,
    "arms": dict.fromkeys(ARMS, _ARM),
    "limits": {"ttft_ms": _not_negative, "itl_ms": _not_negative},
    "runs": [_RUN],
}
