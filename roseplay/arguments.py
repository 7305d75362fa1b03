"""What commands share: flags made from the catalogue of settings, and errors as one line with an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from roseplay.own_models import EMBEDDED, SMOLLM2
from roseplay.settings import Choice, Setting, Switch, defaults_of, settings_of


class Parser(argparse.ArgumentParser):
    """A parser that reports a mistake in one line and exits with code 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")


def exit_code(name: str, work: Callable[[], int], *failures: type[Exception]) -> int:
    """Runs a command and returns its exit code; an error becomes one line on standard error, after the command's name.

    A user's mistake (``ValueError``, ``OSError``, or ``ImportError`` for an extra that is not installed) is exit code 2, one
    of the ``failures`` 1, and an interruption 130.
    """
    try:
        return work()
    except failures as error:
        text, code = str(error) or ("it took too long" if isinstance(error, TimeoutError) else type(error).__name__), 1
    except OSError as error:
        text, code = f"{error.filename}: {error.strerror}" if error.filename else str(error), 2
    except (ValueError, ImportError) as error:
        text, code = str(error), 2
    except KeyboardInterrupt:
        text, code = "interrupted", 130
    print(f"{name}: {text}", file=sys.stderr)
    return code


def within(least: float, most: float) -> Callable[[str], Any]:
    """Returns a parser of numbers from ``least`` to ``most``, of integers if ``least`` is one."""

    def number(text: str) -> float:
        with suppress(ValueError):  # of what is no such number
            value = type(least)(text)
            if least <= value <= most:
                return value
        raise argparse.ArgumentTypeError(f"it is {text}: use {least:,.12g} to {most:,.12g}")

    return number


def list_of_integers(text: str) -> list[int]:
    """Parses integers of at least 1, such as ``1,8,32``."""
    try:
        return [within(1, 10**6)(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers of at least 1, such as 1,8,32") from None


def add_model_flag(parser: Any) -> None:
    """Add the flag ``--model``; its value is ``None`` if it is not given."""
    parser.add_argument(
        "--model",
        metavar="PATH_OR_HF_ID",
        help="a local directory, a GGUF file, a Hugging Face id (org/name, or org/name:Q4_K_M for GGUF), "
        f"{SMOLLM2}, or the built-in {EMBEDDED} (default: {SMOLLM2} if it is on this machine, otherwise {EMBEDDED})",
    )


def add_field_flags(
    group: Any,
    kind: type,
    *,
    only: Collection[str] | None = None,
    leave_out: Collection[str] = (),
    defaults: Mapping[str, Any] | None = None,
    fill: bool = False,
) -> None:
    """Add a flag for each field of a settings class.

    Args:
        only: fields that get a flag; all by default.
        leave_out: fields that get no flag.
        defaults: defaults that replace the class's own.
        fill: whether a flag that is not given gets the field's default. Otherwise it gets ``...``, see
            ``given_fields``.
    """
    for name, setting in settings_of(kind).items():
        if name in leave_out or (only is not None and name not in only):
            continue
        default = {**defaults_of(kind), **(defaults or {})}[name]
        options = {"default": default if fill else ..., "help": _help(setting, default), **_reading(setting)}
        group.add_argument("--" + name.replace("_", "-"), **options)


def _reading(setting: Setting) -> dict[str, Any]:
    """Returns the arguments with which argparse reads the setting's flag."""
    values = setting.values
    if isinstance(values, Switch):
        return {"action": argparse.BooleanOptionalAction}
    if isinstance(values, Choice):
        words = "|".join(values.words)
        if values.prefix or values.file or values.none:  # checked with the other settings
            return {"type": _reader(setting), "metavar": words}
        return {"choices": values.options, "metavar": words}
    return {"type": _reader(setting), "metavar": (setting.unit or values.name).upper()}


def _help(setting: Setting, default: Any) -> str:
    vllm = f"; vLLM: {setting.vllm_name}" if setting.vllm else ""
    return f"{setting.explanation} (default: {setting.show(default)}{vllm})".replace("%", "%%")


def _reader(setting: Setting) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return setting.read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {setting.values}") from None

    return read


def given_fields(kind: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a settings class whose flags were given."""
    values = {name: arguments.get(name, ...) for name in settings_of(kind)}
    return {name: value for name, value in values.items() if value is not ...}
