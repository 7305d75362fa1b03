"""``roseplay serve``: the API without a page."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from roseplay.arguments import DEFAULT_MODEL, Parser, add_field_flags, add_model_flag, given_fields
from roseplay.config import EngineConfig, Knobs
from roseplay.serve.guard import allowed_hosts, is_loopback
from roseplay.serve.listening import address_of, announce, listen
from roseplay.serve.options import KEY_VARIABLE, ServerOptions, add_server_flags, server_options

if TYPE_CHECKING:
    from roseplay.engine.client import Engine

PORT = 8000
# The embedded model's matrices are too small for a second thread to help. ``--threads`` overrides it.
EMBEDDED_THREADS = 1
# Defaults that differ from the library's: in a process of its own the engine does not compete for the interpreter.
DEFAULTS = {"worker": "process"}


@dataclasses.dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    model: str
    server: ServerOptions
    config: EngineConfig
    knobs: Knobs


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; returns 2 if it could not start."""
    options = parse(argv)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # while it starts; then the server handles signals
    options.server.configure_logging()
    try:
        return _main(options)
    except KeyboardInterrupt:
        return 130


def parse(argv: Sequence[str] | None = None) -> Options:
    """Parse the command line; exits with code 2 if it is invalid."""
    parser = Parser(prog="roseplay serve", description="Serve a model to OpenAI's clients, without a page.")
    add_model_flag(parser)
    add_server_flags(parser, PORT)
    add_field_flags(parser.add_argument_group("engine, fixed at start"), EngineConfig, defaults=DEFAULTS)
    add_field_flags(parser.add_argument_group("knobs, which /v1/runtime_config changes"), Knobs)
    arguments = vars(parser.parse_args(sys.argv[1:] if argv is None else list(argv)))
    try:
        config = EngineConfig(**{**DEFAULTS, **given_fields(EngineConfig, arguments)})
        knobs = Knobs(**given_fields(Knobs, arguments))
        server = server_options(arguments)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    model = arguments["model"] or DEFAULT_MODEL
    if model == DEFAULT_MODEL and config.threads is None:
        config = dataclasses.replace(config, threads=EMBEDDED_THREADS)
    return Options(model, server, server.for_engine(config), knobs)


def _main(options: Options) -> int:
    try:
        listener = listen(options.server.host, options.server.port, accept=False)
    except OSError as error:
        return _refuse(str(error))
    with listener:
        warn_if_open(options.server)
        from roseplay.engine.client import Engine  # takes seconds, and torch
        from roseplay.engine.errors import EngineStartError

        try:
            engine = Engine(options.model, config=options.config, knobs=options.knobs)
        except (EngineStartError, ValueError, OSError) as error:
            return _refuse(str(error))
        with engine:
            try:
                publishing = options.server.publishing(engine)
            except OSError as error:
                return _refuse(str(error))
            with publishing:
                _serve(engine, options.server, listener)
    return 0


def _serve(engine: Engine, options: ServerOptions, listener: socket.socket) -> None:
    """Serve until a signal comes."""
    import uvicorn

    from roseplay.serve.app import ServedEngine, create_app
    from roseplay.serve.drain import Drain, DrainingServer

    drain, hosts = Drain(), allowed_hosts(options.host, options.allow_host)
    app = create_app(ServedEngine(engine), hosts, key=options.api_key, drain=drain, log_requests=options.log_requests)
    config = uvicorn.Config(app, log_config=None, log_level=options.log_level, timeout_graceful_shutdown=2)
    server = DrainingServer(config, drain, options.grace_s)
    address, info = address_of(listener, options.host), engine.info
    said = f"is live at {address}/v1 ({info.model}, {info.device}, {info.dtype})"
    threading.Thread(target=announce, args=(address, ["/health"], said, server), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn ends in order and then raises the signal again
        server.run(sockets=[listener])


def warn_if_open(server: ServerOptions) -> None:
    """Say so if other machines may use the server without a key."""
    if server.api_key is None and not is_loopback(server.host):
        print(
            f"roseplay: {server.host} is open to other machines: set --api-key or {KEY_VARIABLE} to ask them for a key",
            file=sys.stderr,
        )


def _refuse(message: str) -> int:
    print(f"roseplay: {message}", file=sys.stderr)
    return 2
