"""The page's command line: every field of EngineConfig and of Knobs is a flag."""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any, NoReturn

from roseplay.config import ADMISSIONS, ATTENTIONS, DTYPES, WORKERS, EngineConfig, Knobs
from roseplay.play.guard import default_host

DEFAULT_MODEL = "tiny-chat"
# Where the page wants something else than a library's user does. A process of its own keeps the engine's steps clear
# of what serving the page does meanwhile (``roseplay bench page`` measures it).
_DEFAULTS = {"worker": "process"}
_CHOICES = {"dtype": DTYPES, "worker": WORKERS, "admission": ADMISSIONS, "attention": ATTENTIONS}
_METAVARS = {"device": "auto|cpu|cuda"}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the flags)\n")


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    model: str
    host: str
    port: int
    allow_host: tuple[str, ...]
    config: EngineConfig
    knobs: Knobs
    record: str | None = None
    replay: str | None = None


def parse(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; ends the program with exit code 2 where it makes no sense."""
    parser = _parser()
    arguments = vars(parser.parse_args(sys.argv[1:] if argv is None else list(argv)))
    if arguments["replay"] is not None:
        _check_replay(parser, arguments)
    try:
        config = EngineConfig(**{**_DEFAULTS, **_given(EngineConfig, arguments)})
        knobs = Knobs(**_given(Knobs, arguments))
    except ValueError as error:
        parser.error(str(error))
    return Options(
        arguments["model"] or DEFAULT_MODEL, arguments["host"], arguments["port"], tuple(arguments["allow_host"]), config,
        knobs, arguments["record"], arguments["replay"],
    )  # fmt: skip


def _check_replay(parser: Parser, arguments: dict[str, Any]) -> None:
    """A replay has no engine: what would set one up is refused rather than ignored."""
    given = {**_given(EngineConfig, arguments), **_given(Knobs, arguments)}
    given |= {name: 1 for name in ("model", "record") if arguments[name] is not None}
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        parser.error(f"--replay shows a recording without an engine: leave out {flags}")


def _given(kind: type, arguments: dict[str, Any]) -> dict[str, Any]:
    return {f.name: arguments[f.name] for f in dataclasses.fields(kind) if arguments[f.name] is not ...}


def _parser() -> Parser:
    parser = Parser(
        prog="app.py" if sys.argv[0].endswith("app.py") else "roseplay play",
        description="Open the page: chats stream from a live engine, a burst loads it, sliders steer it.",
        argument_default=...,
    )
    parser.add_argument(
        "--model",
        default=None,
        metavar="PATH_OR_HF_ID",
        help="a local directory, a Hugging Face id, or the embedded tiny-chat (default)",
    )
    parser.add_argument("--host", default=default_host(), help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=7860, help="0 takes any free port (default: %(default)s)")
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="a name this server goes by when it listens beyond this machine",
    )
    parser.add_argument(
        "--record", default=None, metavar="FILE", help="write the run to a new file as it goes, with the texts of all"
    )
    parser.add_argument(
        "--replay", default=None, metavar="FILE", help="show a recorded run instead, without an engine or a model"
    )  # fmt: skip
    _add_fields(parser.add_argument_group("engine, fixed at start"), EngineConfig)
    _add_fields(parser.add_argument_group("knobs, which the page changes while it runs"), Knobs)
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: use 0 to 65535")
    return int(text)


def _add_fields(group: Any, kind: type) -> None:
    """A flag for each field of a dataclass, explained by the class's own docstring."""
    about, hints = _explanations(kind), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        flag, text = "--" + field.name.replace("_", "-"), about.get(field.name, "").replace("%", "%%")
        hint, default = hints[field.name], _DEFAULTS.get(field.name, field.default)
        if hint is bool:
            text += f" (default: {'on' if default else 'off'})"
            group.add_argument(flag, action=argparse.BooleanOptionalAction, default=..., help=text)
            continue
        optional = isinstance(hint, types.UnionType)
        base = next(t for t in typing.get_args(hint) if t is not types.NoneType) if optional else hint
        choices = _CHOICES.get(field.name)
        text += f" (default: {_default_text(kind, default)})"
        group.add_argument(
            flag,
            type=str if choices else _reader(base, optional),
            choices=choices,
            help=text,
            metavar="|".join(choices) if choices else _METAVARS.get(field.name, base.__name__.upper()),
        )


def _default_text(kind: type, default: Any) -> str:
    if default is not None:
        return f"{default:g}" if isinstance(default, float) else str(default)
    return "unlimited" if kind is Knobs else "chosen at start"


def _reader(base: Any, optional: bool) -> Any:
    """Reads a flag's value; where None is possible ``unlimited`` and ``none`` stand for it."""

    def read(text: str) -> Any:
        if optional and text.lower() in ("none", "null", "unlimited", "∞"):
            return None
        return base(text)

    read.__name__ = base.__name__  # argparse names it when a value makes no sense
    return read


def _explanations(kind: type) -> dict[str, str]:
    """The lines under ``Attributes:`` of a class's docstring, by name; several names may share one."""
    explained: dict[str, str] = {}
    entries = re.split(r"\n {8}(?=\w)", (kind.__doc__ or "").partition("Attributes:")[2])
    for entry in entries:
        names, _, meaning = " ".join(entry.split()).replace("``", "").partition(": ")
        explained.update(dict.fromkeys(names.split(", "), meaning.rstrip(".")))
    return explained
