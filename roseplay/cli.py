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

COMMANDS = {
    "play": ("roseplay.play.main", "open the page: watch the engine and change its settings"),
    "serve": ("roseplay.serve.main", "serve a model through OpenAI's API, without the page"),
    "lab": ("roseplay.lab.command", "compare two settings under the same traffic"),
    "plan": ("roseplay.plan.command", "find settings for GPUs that are not here, by simulation"),
    "calibrate": ("roseplay.calibrate.command", "fit the simulation to measurements of a deployment"),
    "export": ("roseplay.recording.command", "make a trace, a table or a report from a recorded run"),
    "import": ("roseplay.wire.command", "make a recording from another engine's telemetry"),
    "bench": ("roseplay.bench.main", "measure the engine"),
    "check": ("roseplay.remote.check.main", "show which features of OpenAI's API a server supports"),
    "doctor": ("roseplay.doctor.main", "show what this machine has, what the engine uses, and what is missing"),
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
    if arguments[0] not in COMMANDS:
        print(f"roseplay: no command {arguments[0]!r}: use {' or '.join(COMMANDS)} (--help)", file=sys.stderr)
        return 2
    module = importlib.import_module(COMMANDS[arguments[0]][0])
    code = module.main(arguments[1:])
    return 0 if code is None else int(code)


def _usage() -> str:
    commands = "\n".join(f"  {name:<9} {about}" for name, (_, about) in COMMANDS.items())
    return (
        f"usage: roseplay COMMAND ...\n\n{commands}\n\n"
        "roseplay COMMAND --help lists its flags; roseplay --version prints the version."
    )
