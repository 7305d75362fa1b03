"""Command-line flags made from the settings in ``roseplay.config``: a field of a dataclass is a flag."""

from __future__ import annotations

import argparse
import dataclasses
import re
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from roseplay.config import ADMISSIONS, ATTENTIONS, DTYPES, WORKERS, Knobs

_CHOICES = {"dtype": DTYPES, "worker": WORKERS, "admission": ADMISSIONS, "attention": ATTENTIONS}
_METAVARS = {"device": "auto|cpu|cuda"}
_NONE = ("none", "null", "unlimited", "∞")


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line and exits with code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")


def add_field_flags(
    group: Any, kind: type, *, defaults: Mapping[str, Any] | None = None, leave_out: Collection[str] = ()
) -> None:
    """Add a flag for each field of a settings dataclass, explained by the class's docstring.

    A flag that is not given has the value ``...``, see ``given_fields``.

    Args:
        defaults: shown in ``--help`` instead of the dataclass's own.
        leave_out: fields that get no flag.
    """
    about, hints = _explanations(kind), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if field.name in leave_out:
            continue
        flag, text = "--" + field.name.replace("_", "-"), about.get(field.name, "").replace("%", "%%")
        hint, default = hints[field.name], (defaults or {}).get(field.name, field.default)
        if hint is bool:
            text += f" (default: {'on' if default else 'off'})"
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=..., help=text)
            continue
        base, optional = _base_type(hint)
        choices = _CHOICES.get(field.name)
        text += f" (default: {_default_text(kind, default)})"
        group.add_argument(
            flag,
            type=str if choices else _reader(base, optional),
            choices=choices,
            default=...,
            help=text,
            metavar="|".join(choices) if choices else _METAVARS.get(field.name, base.__name__.upper()),
        )


def given_fields(kind: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a settings dataclass whose flags were given."""
    found = {field.name: arguments.get(field.name, ...) for field in dataclasses.fields(kind)}
    return {name: value for name, value in found.items() if value is not ...}


def _base_type(hint: Any) -> tuple[Any, bool]:
    """The type of a field without ``None``, and whether ``None`` is one of its values."""
    if not isinstance(hint, types.UnionType):
        return hint, False
    return next(t for t in typing.get_args(hint) if t is not types.NoneType), True


def _default_text(kind: type, default: Any) -> str:
    if default is not None:
        return f"{default:g}" if isinstance(default, float) else str(default)
    return "unlimited" if kind is Knobs else "chosen at start"


def _reader(base: Any, optional: bool) -> Any:
    """Reads a flag's value; where ``None`` is possible, ``unlimited`` and ``none`` stand for it."""

    def read(text: str) -> Any:
        if optional and text.lower() in _NONE:
            return None
        return base(text)

    read.__name__ = base.__name__  # argparse names it in its error message
    return read


def _explanations(kind: type) -> dict[str, str]:
    """The lines under ``Attributes:`` of a class's docstring, by name; several names may share one."""
    explained: dict[str, str] = {}
    entries = re.split(r"\n {8}(?=\w)", (kind.__doc__ or "").partition("Attributes:")[2])
    for entry in entries:
        names, _, meaning = " ".join(entry.split()).replace("``", "").partition(": ")
        explained.update(dict.fromkeys(names.split(", "), meaning.rstrip(".")))
    return explained
