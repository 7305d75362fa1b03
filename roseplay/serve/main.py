"""``roseplay serve``: the API without a web page."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from roseplay.arguments import Parser, add_field_flags, add_model_flag, given_fields
from roseplay.config import SIMULATED_GPUS, EngineConfig, Knobs
from roseplay.extensions import offered
from roseplay.own_models import choose_model, defaults_for
from roseplay.serve.guard import EVERY_SITE, allowed_hosts, is_loopback
from roseplay.serve.interrupts import Interrupts
from roseplay.serve.listening import address_of, announce, listen
from roseplay.serve.options import KEY_VARIABLE, ServerOptions, add_server_flags, server_options
from roseplay.serve.serving import Options, Served, Serving

PORT = 8000
# Defaults that differ from the library's: in its own process, the engine does not compete with the server for the
# interpreter (``roseplay bench page`` measures the effect).
DEFAULTS = {"worker": "process"}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; returns 2 if the server could not start."""
    options, interrupts = parse(argv), Interrupts()
    if threading.current_thread() is threading.main_thread():
        interrupts.handle()  # during the start; then the server handles signals
    options.server.configure_logging()
    try:
        return _main(options, interrupts)
    except KeyboardInterrupt:
        return 130


def parse(argv: Sequence[str] | None = None) -> Options:
    """Parse the command line; exits with code 2 if it is invalid."""
    parser = Parser(prog="roseplay serve", description="Serve a model through OpenAI's API, without the page.")
    add_model_flag(parser)
    add_server_flags(parser, PORT)
    ways: Sequence[Serving] = offered("serving")
    for way in ways:
        way.add_flags(parser)
    add_field_flags(parser.add_argument_group("engine, fixed at start"), EngineConfig, defaults=DEFAULTS)
    add_field_flags(parser.add_argument_group("knobs, which /v1/runtime_config can change"), Knobs)
    arguments = vars(parser.parse_args(sys.argv[1:] if argv is None else list(argv)))
    model, choice = choose_model(arguments["model"], on_simulated_gpu=arguments["run_as"] in SIMULATED_GPUS)
    settings = given_fields(EngineConfig, arguments)
    try:
        config = EngineConfig(**{**DEFAULTS, **defaults_for(model, settings), **settings})
        knobs = Knobs(**given_fields(Knobs, arguments))
        server = server_options(arguments)
        openers = [opener for way in ways if (opener := way.opener(arguments))]
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    if len(openers) > 1:
        parser.error("these flags ask for different ways to serve: give those of one")
    return Options(model, server, config, knobs, openers[0] if openers else None, choice)


def _main(options: Options, interrupts: Interrupts) -> int:
    try:
        listener = listen(options.server.host, options.server.port, accept=False)
    except OSError as error:
        return refuse(str(error))
    with listener:
        warn_if_open(options.server)
        if options.chosen is not None:
            print(f"roseplay: {options.chosen}", file=sys.stderr)
        from roseplay.engine.errors import EngineStartError  # imports the engine's package

        try:
            with (options.opener or _one_engine)(options) as served:
                _serve(served, options.server, listener, interrupts)
        except (EngineStartError, ValueError, OSError) as error:
            return refuse(str(error))
    return 0


@contextlib.contextmanager
def _one_engine(options: Options) -> Iterator[Served]:
    from roseplay.engine.client import Engine
    from roseplay.serve.app import ServedEngine

    with Engine(options.model, config=options.config, knobs=options.knobs) as engine:
        yield Served(ServedEngine(engine))


def _serve(served: Served, options: ServerOptions, listener: socket.socket, interrupts: Interrupts) -> None:
    """Serve until a signal comes; raises ``KeyboardInterrupt`` if one came before."""
    import uvicorn

    from roseplay.serve.app import create_app
    from roseplay.serve.drain import Drain, DrainingServer
    from roseplay.serve.monitor import Monitor

    drain, hosts = Drain(), allowed_hosts(options.host, options.allow_host)
    key, origins = options.api_key, options.allow_origin
    told: dict[str, Any] = {"names": options.served_model_name, "traces": options.traces()}
    engine, routers = served.engine, served.routers
    monitor = (served.monitor_class or Monitor)(engine, log_requests=options.log_requests, **told)
    app = create_app(engine, hosts, key=key, origins=origins, drain=drain, monitor=monitor, routers=routers, **told)
    config = uvicorn.Config(app, log_config=None, log_level=options.log_level, timeout_graceful_shutdown=2)
    server = DrainingServer(config, drain, options.grace_s, interrupts, abort=engine.engine.abort_all)
    address, info = address_of(listener, options.host), engine.engine.info
    message = f"is live at {address}/v1 ({info.model}, {info.device}, {info.dtype})"
    threading.Thread(target=announce, args=(address, ["/health"], message, server), daemon=True).start()
    interrupts.check()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn shuts down and then raises the signal again
        server.run(sockets=[listener])


def warn_if_open(server: ServerOptions) -> None:
    """Warn if other machines, or the pages of all web sites, may use the server without a key."""
    anyone = {server.host: "other machines"} if not is_loopback(server.host) else {}
    if EVERY_SITE.intersection(server.allow_origin):
        anyone["the API"] = "the pages of every web site"
    for what, whom in anyone.items() if server.api_key is None else ():
        print(
            f"roseplay: {what} is open to {whom}: set --api-key or {KEY_VARIABLE} to ask them for a key",
            file=sys.stderr,
        )


def refuse(message: str) -> int:
    """Print why a server does not start; returns the exit code."""
    print(f"roseplay: {message}", file=sys.stderr)
    return 2
