"""The page's command line, with a flag for every field of EngineConfig and Knobs."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from roseplay.arguments import Parser, add_field_flags, add_model_flag, given_fields
from roseplay.config import SIMULATED_GPUS, EngineConfig, Knobs
from roseplay.own_models import choose_model, defaults_for
from roseplay.remote.address import ServerAddress, add_server_address_flags, server_addresses
from roseplay.serve.guard import is_loopback
from roseplay.serve.options import KEY_VARIABLE, ServerOptions, add_server_flags, server_options

# Defaults that differ from the library's. In its own process, the engine does not compete with the page's server for
# the interpreter (``roseplay bench page`` measures the effect).
_DEFAULTS = {"worker": "process"}
PORT = 7860


@dataclasses.dataclass(frozen=True)
class Options:
    """The parsed command line.

    Attributes:
        chosen: message about the model that was chosen because none was asked for.
        addresses: of the server to show instead of an own engine, and of one that the lab compares with it.
        asked: the engine settings given on the command line.
        view: which controls the page shows at first: "full", "simple", or what suits the visitor.
        models: those that the page offers; if empty, and the page is private, this machine's.
    """

    model: str
    server: ServerOptions
    config: EngineConfig
    knobs: Knobs
    record: str | None = None
    replay: str | None = None
    addresses: tuple[ServerAddress, ...] = ()
    chosen: str | None = None
    models: tuple[str, ...] = ()
    view: str | None = None
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_private(self) -> bool:
        """Whether the page can be reached only from this machine or with the key."""
        server = self.server
        return server.api_key is not None or (is_loopback(server.host) and not server.allow_host)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Parse the command line; exits with code 2 if it is invalid."""
    parser = _parser()
    arguments = vars(parser.parse_args(sys.argv[1:] if argv is None else list(argv)))
    _check_foreign(parser, arguments)
    models = _names(arguments["models"])
    model, said = choose_model(
        arguments["model"] or next(iter(models), None), on_simulated_gpu=arguments["run_as"] in SIMULATED_GPUS
    )
    given = given_fields(EngineConfig, arguments)
    try:
        config = engine_settings(model, given)
        knobs = Knobs(**given_fields(Knobs, arguments))
        server, addresses = server_options(arguments), server_addresses(arguments)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    own_key = server.api_key is not None and server.api_key != os.environ.get(KEY_VARIABLE)
    if (
        addresses and addresses[0].api_key is None and own_key
    ):  # not a key from the environment, which is only for the page
        addresses = (dataclasses.replace(addresses[0], api_key=server.api_key), *addresses[1:])
    return Options(
        *(model, server, server.for_engine(config), knobs),
        *(arguments["record"], arguments["replay"], addresses),
        chosen=said,
        models=models,
        view=arguments["view"],
        asked={**given, "kv_events": server.for_engine(config).kv_events},
    )


def engine_settings(model: str, asked: Mapping[str, Any]) -> EngineConfig:
    """Returns the settings of a model's engine: those ``asked`` for, and otherwise what suits the page and the model.

    Raises ``ValueError`` if settings contradict each other.
    """
    return EngineConfig(**{**_DEFAULTS, **defaults_for(model, asked, watched=True), **asked})


def _names(lists: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the names in some comma-separated lists, each once."""
    return tuple(dict.fromkeys(name.strip() for names in lists or () for name in names.split(",") if name.strip()))


_OF_PROGRAMS = ("kv_events_port", "forward_pass_port", "otlp_traces_endpoint", "served_model_name", "allow_origin")
# What needs an engine of one's own, besides its settings, by the flag that leaves it out, and why it does.
_FOREIGN = {
    "replay": ("--replay shows a recording without an engine", ("model", "models", "record", *_OF_PROGRAMS)),
    "url": ("--url shows a server that runs already", ("replay", "models", *_OF_PROGRAMS, "log_requests")),
}


def _check_foreign(parser: Parser, arguments: dict[str, Any]) -> None:
    """Refuse flags that configure an engine where there is none: ignoring them would mislead."""
    for flag, (why, absent) in _FOREIGN.items():
        if arguments[flag] is None:
            continue
        given = [*given_fields(EngineConfig, arguments), *given_fields(Knobs, arguments)]
        given += [name for name in absent if arguments[name] not in (None, False)]
        if given:
            parser.error(f"{why}: leave out {', '.join('--' + name.replace('_', '-') for name in given)}")


def _parser() -> Parser:
    parser = Parser(
        prog="app.py" if sys.argv[0].endswith("app.py") else "roseplay play",
        description="Open the page: chat with a live engine, send it bursts of requests and change its settings.",
    )
    add_model_flag(parser)
    parser.add_argument(
        "--models",
        action="append",
        metavar="NAME,NAME",
        help="the only models that the page offers to load; may be repeated (default: those found on this machine, if"
        " the page is on the loopback address or requires a key)",
    )
    parser.add_argument(
        "--record", default=None, metavar="FILE", help="record the run to a new file, with the texts of all requests"
    )
    parser.add_argument(
        "--replay", default=None, metavar="FILE", help="show a recorded run instead, without an engine or a model"
    )  # fmt: skip
    parser.add_argument(
        "--view",
        choices=("simple", "full"),
        help="start with few controls, or with all of them (default: few at a visitor's first visit)",
    )
    add_server_address_flags(parser.add_argument_group("another server instead of an engine"))
    add_server_flags(parser, PORT)
    add_field_flags(parser.add_argument_group("engine, fixed at start"), EngineConfig, defaults=_DEFAULTS)
    add_field_flags(parser.add_argument_group("knobs, which the page can change while the engine runs"), Knobs)
    return parser
