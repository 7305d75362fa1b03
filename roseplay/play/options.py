"""The page's command line: every field of EngineConfig and of Knobs is a flag."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any

from roseplay.arguments import Parser, add_field_flags, add_model_flag, given_fields
from roseplay.config import EngineConfig, Knobs
from roseplay.engine.http.address import ServerAddress, add_server_address_flags, server_addresses
from roseplay.own_models import choose_model, defaults_for
from roseplay.serve.options import KEY_VARIABLE, ServerOptions, add_server_flags, server_options

# Defaults that differ from the library's. In a process of its own the engine does not compete with serving the page for
# the interpreter (``roseplay bench page`` measures it).
_DEFAULTS = {"worker": "process"}
PORT = 7860


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asked for.

    Attributes:
        chosen: what there is to say of the model where none was asked for.
        addresses: of the server that is shown in place of an engine of our own, and of one that the lab compares with it.
    """

    model: str
    server: ServerOptions
    config: EngineConfig
    knobs: Knobs
    record: str | None = None
    replay: str | None = None
    addresses: tuple[ServerAddress, ...] = ()
    chosen: str | None = None


def parse(argv: Sequence[str] | None = None) -> Options:
    """Parse the command line; exits with code 2 if it is invalid."""
    parser = _parser()
    arguments = vars(parser.parse_args(sys.argv[1:] if argv is None else list(argv)))
    if arguments["replay"] is not None:
        _check_replay(parser, arguments)
    if arguments["url"] is not None:
        _check_url(parser, arguments)
    model, said = choose_model(arguments["model"])
    given = given_fields(EngineConfig, arguments)
    try:
        config = EngineConfig(**{**_DEFAULTS, **defaults_for(model, given, watched=True), **given})
        knobs = Knobs(**given_fields(Knobs, arguments))
        server, addresses = server_options(arguments), server_addresses(arguments)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    own_key = server.api_key is not None and server.api_key != os.environ.get(KEY_VARIABLE)
    if (
        addresses and addresses[0].api_key is None and own_key
    ):  # not a key of the environment, which is the page's alone
        addresses = (dataclasses.replace(addresses[0], api_key=server.api_key), *addresses[1:])
    return Options(
        *(model, server, server.for_engine(config), knobs),
        *(arguments["record"], arguments["replay"], addresses, said),
    )


def _check_replay(parser: Parser, arguments: dict[str, Any]) -> None:
    """A replay has no engine: flags that would set one up are refused rather than ignored."""
    given = {**given_fields(EngineConfig, arguments), **given_fields(Knobs, arguments)}
    absent = ("model", "record", "kv_events_port", "forward_pass_port", "otlp_traces_endpoint")
    given |= {name: 1 for name in absent if arguments[name] is not None}
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        parser.error(f"--replay shows a recording without an engine: leave out {flags}")


def _check_url(parser: Parser, arguments: dict[str, Any]) -> None:
    """The engine runs elsewhere: flags that would set one up are refused rather than ignored."""
    given: list[str] = [*given_fields(EngineConfig, arguments), *given_fields(Knobs, arguments)]
    absent = ("replay", "kv_events_port", "forward_pass_port", "otlp_traces_endpoint")
    given += [name for name in absent if arguments[name] is not None]
    given += ["log_requests"] if arguments["log_requests"] else []
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        parser.error(f"--url shows a server that runs already: leave out {flags}")


def _parser() -> Parser:
    parser = Parser(
        prog="app.py" if sys.argv[0].endswith("app.py") else "roseplay play",
        description="Open the page: chats stream from a live engine, a burst loads it, sliders steer it.",
    )
    add_model_flag(parser)
    parser.add_argument(
        "--record", default=None, metavar="FILE", help="write the run to a new file as it goes, with the texts of all"
    )
    parser.add_argument(
        "--replay", default=None, metavar="FILE", help="show a recorded run instead, without an engine or a model"
    )  # fmt: skip
    add_server_address_flags(parser.add_argument_group("another server in place of an engine"))
    add_server_flags(parser, PORT)
    add_field_flags(parser.add_argument_group("engine, fixed at start"), EngineConfig, defaults=_DEFAULTS)
    add_field_flags(parser.add_argument_group("knobs, which the page changes while it runs"), Knobs)
    return parser
