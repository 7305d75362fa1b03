"""``roseplay play``: binds the port, serves the page while the model is loaded, and reports when it is ready."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roseplay.engine.errors import EngineError
from roseplay.own_models import EMBEDDED
from roseplay.play.allocator import return_freed_memory
from roseplay.play.engine_host import EngineHost
from roseplay.play.engine_start import host_engine
from roseplay.play.options import Options, parse
from roseplay.play.page_host import PageHost
from roseplay.play.start_console import StartConsole
from roseplay.serve.interrupts import Interrupts
from roseplay.serve.listening import address_of, announce, answers, listen
from roseplay.serve.main import refuse, warn_if_open

READY_PATHS = ("/health", "/")  # must answer before the page counts as ready
LOOK_S = 0.2  # interval of checks whether another model is being loaded


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the page until interrupted; returns 2 if the server could not start."""
    options, interrupts = parse(argv), Interrupts()
    options.server.configure_logging()
    if threading.current_thread() is threading.main_thread():
        _end_in_order_at_signals(interrupts)
    try:
        return _main(options, interrupts)
    except KeyboardInterrupt:  # during the start
        return 130


def _end_in_order_at_signals(interrupts: Interrupts) -> None:
    """Treat SIGTERM and a closed terminal like Ctrl-C, so that engine and recording are closed on the way out."""
    interrupts.handle()
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup sets it
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def _main(options: Options, interrupts: Interrupts) -> int:
    try:
        listener = listen(options.server.host, options.server.port)
    except OSError as error:
        return refuse(str(error))
    warn_if_open(options.server)
    with listener:
        return _replay(listener, options, interrupts) if options.replay else _play(listener, options, interrupts)


def _play(listener: socket.socket, options: Options, interrupts: Interrupts) -> int:
    """Serve the page of an engine, even before that is live."""
    if options.record and Path(options.record).exists():  # checked before the model is loaded
        return refuse(f"{options.record!r} exists already: name a new file with --record, or remove it")
    if options.chosen is not None and not options.elsewhere:
        print(f"roseplay: {options.chosen}", file=sys.stderr)
    if options.config.worker == "process":  # otherwise this process computes
        return_freed_memory()
    # What may work if these options fail: the embedded model, without settings.
    program = "python app.py" if sys.argv[0].endswith("app.py") else "roseplay play"
    host = host_engine(options, f"{program} --model {EMBEDDED}")
    console = StartConsole(host.status)
    with contextlib.closing(host):
        host.begin()
        console.start()
        try:
            return _serve_from_the_start(host, console, listener, options, interrupts)
        finally:
            console.stop()


def _serve_from_the_start(
    host: EngineHost, console: StartConsole, listener: socket.socket, options: Options, interrupts: Interrupts
) -> int:
    """Serve the page until it is interrupted or the first start has failed."""
    server = make_server(host, options, interrupts)  # imports Gradio, which takes some seconds
    interrupts.check()
    host.page_is_made.set()
    address, ended = address_of(listener, options.server.host), threading.Event()
    # Otherwise this process's objects include the model.
    lasting = options.elsewhere is not None or options.config.worker == "process"
    threading.Thread(target=_follow, args=(host, console, server, address, ended, lasting), daemon=True).start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        if host.state == "starting":
            raise
    finally:
        ended.set()
    return 2 if host.state == "failed" else 0


def _follow(
    host: EngineHost, console: StartConsole, server: Any, address: str, ended: threading.Event, lasting: bool
) -> None:
    """Report the page's address, and when an engine is live; end the server if the first one could not be started.

    Args:
        lasting: whether everything that this process has loaded by then lasts as long as the process.
    """
    if not host.over and answers(address + "/", server):
        console.say(f"roseplay: the page is at {address}, the engine is not live yet")
    while not host.wait(0.1) and not ended.is_set():
        pass
    console.stop()
    if host.live:
        if lasting:
            from roseplay.engine.processes import freeze_objects  # a slow import while the engine is not there

            freeze_objects()  # a garbage collection over all of Gradio's and torch's objects delays a poll by 0.4 s
        _announce_live(host, address, server)
        _follow_changes(host, address, server, ended)
    elif host.status.failure is not None:
        refuse(host.status.failure.message)
        host.tell_pages(ended)
        server.should_exit = True


def _announce_live(host: EngineHost, address: str, server: Any) -> None:
    info = host.engine.info
    where = info.server or f"{info.device}, {info.dtype}"
    announce(address, READY_PATHS, f"is live at {address} ({info.model}, {where})", server)


def _follow_changes(host: EngineHost, address: str, server: Any, ended: threading.Event) -> None:
    """Show the start of each further model, and report its outcome."""
    while not ended.wait(LOOK_S):
        if host.over:
            continue
        status = host.status
        console = StartConsole(status)
        console.start()
        while host.status is status and not host.wait(LOOK_S) and not ended.is_set():
            pass
        console.stop()
        if status.failure is not None:
            refuse(f"{status.model} could not be loaded: {status.failure.message}")
        elif host.live:
            with contextlib.suppress(EngineError):  # it has already been replaced
                _announce_live(host, address, server)


def _replay(listener: socket.socket, options: Options, interrupts: Interrupts) -> int:
    """Serve the page of a recording."""
    from roseplay.play.replay_server import ReplayServer
    from roseplay.recording.reader import RecordingError

    try:
        replay = ReplayServer(str(options.replay))
    except RecordingError as error:
        return refuse(str(error))
    with contextlib.suppress(KeyboardInterrupt):
        server, address = make_server(replay, options, interrupts), address_of(listener, options.server.host)
        message = f"is replaying {options.replay} at {address}"
        threading.Thread(target=announce, args=(address, READY_PATHS, message, server), daemon=True).start()
        server.run(sockets=[listener])
    return 0


def make_server(host: PageHost, options: Options, interrupts: Interrupts) -> Any:
    """Returns a page's server, a ``uvicorn.Server`` that has not started."""
    import uvicorn

    from roseplay.play.server import create_app
    from roseplay.serve.drain import Drain, DrainingServer
    from roseplay.serve.guard import allowed_hosts

    server, drain = options.server, Drain()
    hosts = allowed_hosts(server.host, server.allow_host)
    picker = None
    if isinstance(host, EngineHost) and not options.elsewhere:  # otherwise the model runs elsewhere, or is replayed
        from roseplay.play.model_picker import ModelPicker  # imports transformers, which a replay does not need

        picker = ModelPicker(host, trusted=options.is_private, models=options.models, asked=options.asked)
    app = create_app(
        host,
        hosts,
        picker=picker if picker is not None and picker.offers else None,
        key=server.api_key,
        drain=drain,
        log_requests=server.log_requests,
        traces=server.traces(),
        has_api=options.elsewhere is None,
        names=server.served_model_name,
        origins=server.allow_origin,
        view=options.view,
    )
    config = uvicorn.Config(app, log_config=None, log_level=server.log_level, timeout_graceful_shutdown=2)
    if host.replaying:
        return DrainingServer(config, drain, server.grace_s, interrupts)

    def stop_services() -> None:
        with contextlib.suppress(EngineError):  # the engine is still starting
            host.playground.close_services(timeout=0.0)

    def abort_all() -> None:
        with contextlib.suppress(EngineError):
            host.playground.stop()

    return DrainingServer(config, drain, server.grace_s, interrupts, begin=stop_services, abort=abort_all)
