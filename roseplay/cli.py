"""The ``roseplay`` command: runs a subcommand, whose module is imported only then."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import roseplay
from roseplay.extensions import Command, commands

CORE = {
    "play": Command("roseplay.play.main", "open the page: watch the engine and change its settings"),
    "serve": Command("roseplay.serve.main", "serve a model through OpenAI's API, without the page"),
    "export": Command("roseplay.recording.command", "make a trace, a table or a report from a recorded run"),
}


def program(*first: str) -> NoReturn:
    """Run ``main`` as a program, with ``first`` before its arguments; exits with the code that it returns.

    Does not let Python free each object of torch and the models, which would take seconds after the last output.
    """
    codes: list[int] = []
    atexit.register(_leave, codes)  # before anything is imported that has exit handlers: the first registered runs last
    codes.append(main([*first, *sys.argv[1:]]))
    sys.exit(codes[0])


def _leave(codes: Sequence[int]) -> None:
    """End the process, unless ``main`` raised an exception or the output cannot be written: Python reports that."""
    if codes:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``roseplay COMMAND ...``; returns the exit code, 2 for an unknown command."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"roseplay {roseplay.__version__}")
        return 0
    choices = CORE | commands()
    if arguments[0] not in choices:
        print(f"roseplay: no command {arguments[0]!r}: use {' or '.join(choices)} (--help)", file=sys.stderr)
        return 2
    code = importlib.import_module(choices[arguments[0]].module).main(arguments[1:])
    return 0 if code is None else int(code)


def _usage() -> str:
    lines = "\n".join(f"  {name:<9} {command.about}" for name, command in (CORE | commands()).items())
    return (
        f"usage: roseplay COMMAND ...\n\n{lines}\n\n"
        "roseplay COMMAND --help lists its flags; roseplay --version prints the version."
    )
