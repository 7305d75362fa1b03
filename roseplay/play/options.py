"""The page's command line, with a flag for every field of EngineConfig and Knobs."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from roseplay.arguments import Parser, add_field_flags, add_model_flag, given_fields
from roseplay.config import SIMULATED_GPUS, EngineConfig, Knobs
from roseplay.extensions import offered
from roseplay.own_models import choose_model, defaults_for
from roseplay.play.engine_source import Elsewhere, EngineSource
from roseplay.serve.guard import is_loopback
from roseplay.serve.main import DEFAULTS
from roseplay.serve.options import KEY_VARIABLE, ServerOptions, add_server_flags, server_options

PORT = 7860


@dataclasses.dataclass(frozen=True)
class Options:
    """The parsed command line."""

    model: str
    server: ServerOptions
    config: EngineConfig
    knobs: Knobs
    record: str | None = None
    replay: str | None = None
    elsewhere: Elsewhere | None = None  # the engine to show instead of one here
    chosen: str | None = None  # message about the model that was chosen because none was asked for
    models: tuple[str, ...] = ()  # those that the page offers; if empty, and the page is private, this machine's
    view: str | None = None  # which controls the page shows at first: "full", "simple", or what suits the visitor
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # the engine settings given on the command line

    @property
    def is_private(self) -> bool:
        """Whether the page can be reached only from this machine or with the key."""
        server = self.server
        return server.api_key is not None or (is_loopback(server.host) and not server.allow_host)


def parse(argv: Sequence[str] | None = None) -> Options:
    """Parse the command line; exits with code 2 if it is invalid."""
    sources: Sequence[EngineSource] = offered("engines")
    parser = _parser(sources)
    arguments = vars(parser.parse_args(sys.argv[1:] if argv is None else list(argv)))
    named = (name.strip() for names in arguments["models"] or () for name in names.split(","))
    models = tuple(dict.fromkeys(filter(None, named)))  # each once
    model, choice = choose_model(
        arguments["model"] or next(iter(models), None), on_simulated_gpu=arguments["run_as"] in SIMULATED_GPUS
    )
    settings = given_fields(EngineConfig, arguments)
    try:
        config = engine_settings(model, settings)
        knobs = Knobs(**given_fields(Knobs, arguments))
        server = server_options(arguments)
        # Not a key from the environment, which is only for the page.
        page_key = server.api_key if server.api_key != os.environ.get(KEY_VARIABLE) else None
        engines = [engine for source in sources if (engine := source.elsewhere(arguments, page_key))]
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    elsewhere = engines[0] if engines else None
    _check_foreign(parser, arguments, elsewhere)
    return Options(
        model,
        server,
        config,
        knobs,
        record=arguments["record"],
        replay=arguments["replay"],
        elsewhere=elsewhere,
        chosen=choice,
        models=models,
        view=arguments["view"],
        asked=settings,
    )


def engine_settings(model: str, asked: Mapping[str, Any]) -> EngineConfig:
    """Returns the settings of a model's engine: those ``asked`` for, and otherwise what suits the page and the model.

    Raises ``ValueError`` if settings contradict each other.
    """
    return EngineConfig(**{**DEFAULTS, **defaults_for(model, asked, watched=True), **asked})


_OF_PROGRAMS = ("otlp_traces_endpoint", "served_model_name", "allow_origin")


def _check_foreign(parser: Parser, arguments: dict[str, Any], elsewhere: Elsewhere | None) -> None:
    """Refuse flags that configure an engine where there is none: ignoring them would mislead."""
    absent: dict[str, tuple[str, ...]] = {}
    if arguments["replay"] is not None:
        absent["--replay shows a recording without an engine"] = ("model", "models", "record", *_OF_PROGRAMS)
    if elsewhere is not None:
        absent[elsewhere.flag] = ("replay", "models", *_OF_PROGRAMS, "log_requests")
    for why, names in absent.items():
        flags = [*given_fields(EngineConfig, arguments), *given_fields(Knobs, arguments)]
        flags += [name for name in names if arguments[name] not in (None, False)]
        if flags:
            parser.error(f"{why}: leave out {', '.join('--' + name.replace('_', '-') for name in flags)}")


def _parser(sources: Sequence[EngineSource]) -> Parser:
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
    )
    parser.add_argument(
        "--view",
        choices=("simple", "full"),
        help="start with few controls, or with all of them (default: few at a visitor's first visit)",
    )
    for source in sources:
        source.add_flags(parser)
    add_server_flags(parser, PORT)
    add_field_flags(parser.add_argument_group("engine, fixed at start"), EngineConfig, defaults=DEFAULTS)
    add_field_flags(parser.add_argument_group("knobs, which the page can change while the engine runs"), Knobs)
    return parser
