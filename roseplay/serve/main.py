"""``roseplay serve``: the API without a web page."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from roseplay.arguments import Parser, add_field_flags, add_model_flag, given_fields
from roseplay.config import SIMULATED_GPUS, EngineConfig, Knobs
from roseplay.own_models import choose_model, defaults_for
from roseplay.serve.guard import allowed_hosts, is_loopback
from roseplay.serve.interrupts import Interrupts
from roseplay.serve.listening import address_of, announce, listen
from roseplay.serve.options import KEY_VARIABLE, ServerOptions, add_server_flags, server_options

if TYPE_CHECKING:
    from fastapi import APIRouter

    from roseplay.serve.app import ServedEngine
    from roseplay.serve.monitor import Monitor

PORT = 8000
# Defaults that differ from the library's: in its own process, the engine does not compete for the interpreter.
DEFAULTS = {"worker": "process"}


@dataclasses.dataclass(frozen=True)
class Options:
    """The parsed command line.

    Attributes:
        replicas: least and most engines that Ray Serve may run; None means one engine without Ray.
        round_robin: whether requests go to replicas in turn.
        chosen: message about the model that was chosen because none was asked for.
    """

    model: str
    server: ServerOptions
    config: EngineConfig
    knobs: Knobs
    replicas: range | None = None
    round_robin: bool = False
    chosen: str | None = None


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
    _add_ray_flags(parser)
    add_field_flags(parser.add_argument_group("engine, fixed at start"), EngineConfig, defaults=DEFAULTS)
    add_field_flags(parser.add_argument_group("knobs, which /v1/runtime_config can change"), Knobs)
    arguments = vars(parser.parse_args(sys.argv[1:] if argv is None else list(argv)))
    model, said = choose_model(arguments["model"], on_simulated_gpu=arguments["run_as"] in SIMULATED_GPUS)
    given = given_fields(EngineConfig, arguments)
    try:
        config = EngineConfig(**{**DEFAULTS, **defaults_for(model, given), **given})
        knobs = Knobs(**given_fields(Knobs, arguments))
        server = server_options(arguments)
        replicas = _replicas(arguments, server, config)
    except (ValueError, ImportError) as error:
        parser.error(str(error))
    round_robin = arguments["routing"] == "round-robin"
    return Options(model, server, server.for_engine(config), knobs, replicas, round_robin, said)


def _add_ray_flags(parser: Parser) -> None:
    group = parser.add_argument_group("replicas on this machine (docs/ray.md)")
    group.add_argument("--ray", action="store_true", help="serve replicas of the engine, with Ray Serve")
    group.add_argument("--replicas", type=_count, metavar="N", help="number of replicas (default: 1)")
    help = "route requests to the replica with the longest cached prefix or, for comparison, in turn (default: prefix)"
    group.add_argument("--routing", choices=("prefix", "round-robin"), help=help)
    group.add_argument("--autoscale", type=_range, metavar="A..B", help="scale from A to B, by requests and KV usage")


def _replicas(arguments: Mapping[str, Any], server: ServerOptions, config: EngineConfig) -> range | None:
    """Returns the allowed numbers of replicas; None without Ray.

    Raises:
        ImportError: Ray is not installed. ValueError: the flags contradict each other.
    """
    asked = [f"--{name}" for name in ("replicas", "autoscale", "routing") if arguments[name] is not None]
    if not arguments["ray"]:
        if asked:
            raise ValueError(f"{asked[0]} needs --ray")
        return None
    if {"--replicas", "--autoscale"} <= set(asked):
        raise ValueError("give --replicas or --autoscale, not both")
    if server.publishes:
        raise ValueError("telemetry of replicas is not published: leave --kv-events-port and --forward-pass-port out")
    import roseplay.serve.ray.environment  # noqa: F401

    count = arguments["replicas"] or 1
    found: range = arguments["autoscale"] or range(count, count + 1)
    return found


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of replicas: use 1 or more")
    return int(text)


def _range(text: str) -> range:
    least, _, most = text.partition("..")
    if not (least.isdecimal() and most.isdecimal() and 1 <= int(least) < int(most)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of replicas: use A..B, such as 1..4")
    return range(int(least), int(most) + 1)


def _main(options: Options, interrupts: Interrupts) -> int:
    try:
        listener = listen(options.server.host, options.server.port, accept=False)
    except OSError as error:
        return _refuse(str(error))
    with listener:
        warn_if_open(options.server)
        if options.chosen is not None:
            print(f"roseplay: {options.chosen}", file=sys.stderr)
        from roseplay.engine.errors import EngineStartError  # imports the engine's package

        try:
            if options.replicas is None:
                _serve_one(options, listener, interrupts)
            else:
                _serve_replicas(options, options.replicas, listener, interrupts)
        except (EngineStartError, ValueError, OSError) as error:
            return _refuse(str(error))
    return 0


def _serve_one(options: Options, listener: socket.socket, interrupts: Interrupts) -> None:
    """Serve one engine, without Ray."""
    from roseplay.engine.client import Engine
    from roseplay.serve.app import ServedEngine

    engine = Engine(options.model, config=options.config, knobs=options.knobs)
    with engine, options.server.publishing(engine):
        _serve(ServedEngine(engine), options.server, listener, interrupts)


def _serve_replicas(options: Options, replicas: range, listener: socket.socket, interrupts: Interrupts) -> None:
    """Serve engines on Ray Serve."""
    from roseplay.serve.app import ServedEngine
    from roseplay.serve.ray.deployment_settings import RaySettings
    from roseplay.serve.ray.local import local_engine
    from roseplay.serve.ray.monitor import RayMonitor
    from roseplay.serve.ray.routes import replicas_router

    least, most = replicas[0], replicas[-1] if len(replicas) > 1 else None
    grace_s, round_robin = options.server.grace_s, options.round_robin
    settings = RaySettings(options.model, options.config, options.knobs, least, most, round_robin, grace_s)
    settings = dataclasses.replace(settings, names=options.server.served_model_name)
    with local_engine(settings) as engine:
        served = ServedEngine(engine)
        _serve(served, options.server, listener, interrupts, RayMonitor, [replicas_router(engine)])


def _serve(
    served: ServedEngine,
    options: ServerOptions,
    listener: socket.socket,
    interrupts: Interrupts,
    monitor_class: type[Monitor] | None = None,
    routers: Sequence[APIRouter] = (),
) -> None:
    """Serve until a signal comes; raises ``KeyboardInterrupt`` if one came before."""
    import uvicorn

    from roseplay.serve.app import create_app
    from roseplay.serve.drain import Drain, DrainingServer
    from roseplay.serve.monitor import Monitor

    drain, hosts = Drain(), allowed_hosts(options.host, options.allow_host)
    key, origins = options.api_key, options.allow_origin
    told: dict[str, Any] = {"names": options.served_model_name, "traces": options.traces()}
    monitor = (monitor_class or Monitor)(served, log_requests=options.log_requests, **told)
    app = create_app(served, hosts, key=key, origins=origins, drain=drain, monitor=monitor, routers=routers, **told)
    config = uvicorn.Config(app, log_config=None, log_level=options.log_level, timeout_graceful_shutdown=2)
    server = DrainingServer(config, drain, options.grace_s, interrupts, abort=served.engine.abort_all)
    address, info = address_of(listener, options.host), served.engine.info
    said = f"is live at {address}/v1 ({info.model}, {info.device}, {info.dtype})"
    threading.Thread(target=announce, args=(address, ["/health"], said, server), daemon=True).start()
    interrupts.check()
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn shuts down and then raises the signal again
        server.run(sockets=[listener])


def warn_if_open(server: ServerOptions) -> None:
    """Warn if other machines, or the pages of all web sites, may use the server without a key."""
    anyone = {server.host: "other machines"} if not is_loopback(server.host) else {}
    if "*" in server.allow_origin:
        anyone["the API"] = "the pages of every web site"
    for what, whom in anyone.items() if server.api_key is None else ():
        print(
            f"roseplay: {what} is open to {whom}: set --api-key or {KEY_VARIABLE} to ask them for a key",
            file=sys.stderr,
        )


def _refuse(message: str) -> int:
    print(f"roseplay: {message}", file=sys.stderr)
    return 2
