"""Start the page: read the command line, bind the port, serve while the model is loaded, report when it is ready."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from roseplay.arguments import DEFAULT_MODEL
from roseplay.play.allocator import return_freed_memory
from roseplay.play.engine_start import EngineStart, StartingPlayground, start_engine
from roseplay.play.options import Options, parse
from roseplay.play.start_console import StartConsole

PAGE_STARTS_WITHIN_S = 60.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve the page until interrupted; returns 2 if it could not start."""
    options = parse(argv)
    if threading.current_thread() is threading.main_thread():
        _end_in_order_at_signals()
    try:
        return _main(options)
    except KeyboardInterrupt:  # while it was starting
        return 130


def _end_in_order_at_signals() -> None:
    """Treat SIGTERM and a closed terminal like Ctrl-C, so that engine and recording are closed on the way out."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup sets it
        signal.signal(signal.SIGHUP, lambda number, frame: signal.raise_signal(signal.SIGTERM))


def _main(options: Options) -> int:
    try:
        listener = _listen(options.host, options.port)
    except OSError as error:
        return _refuse(
            f"port {options.port} of {options.host} cannot be used: {error.strerror or error}; choose another with --port, 0 takes a free one"
        )
    with listener:
        return _replay(listener, options) if options.replay else _play(listener, options)


def _play(listener: socket.socket, options: Options) -> int:
    """Serve the page of an engine, from before it is live."""
    if options.record and Path(options.record).exists():  # checked before the model is loaded
        return _refuse(f"{options.record!r} is there already: name a new file with --record, or remove it")
    if options.config.worker == "process":  # else this process computes
        return_freed_memory()
    start = start_engine(options, _command_to_try(options))
    console = StartConsole(start.status)
    with contextlib.closing(start):
        start.begin()
        console.start()
        try:
            return _serve_from_the_start(start, console, listener, options)
        finally:
            console.stop()


def _serve_from_the_start(start: EngineStart, console: StartConsole, listener: socket.socket, options: Options) -> int:
    """Serve the page until it is interrupted or the start has failed."""
    knobs = options.knobs.to_dict()
    server = _make_server(StartingPlayground(start, knobs), options, start)  # imports Gradio, for some seconds
    start.page_is_made.set()
    address, ended = _address(options.host, listener.getsockname()[1]), threading.Event()
    lasting = options.config.worker == "process"  # else the model is among this process's objects
    follow = threading.Thread(target=_follow, args=(start, console, server, address, ended, lasting), daemon=True)
    follow.start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        if not start.live and start.status.failure is None:
            raise
    finally:
        ended.set()
    return 2 if start.status.failure is not None else 0


def _follow(
    start: EngineStart, console: StartConsole, server: Any, address: str, ended: threading.Event, lasting: bool
) -> None:
    """Report the address of the page, and when the engine is live; end the server if it could not be started.

    Args:
        lasting: whether what this process has loaded by then lasts as long as the process.
    """
    if not start.over and _answers(address + "/", server):
        console.say(f"roseplay: the page is at {address}, the engine is not live yet")
    while not start.wait(0.1) and not ended.is_set():
        pass
    console.stop()
    if start.live:
        if lasting:
            from roseplay.engine.transport import freeze_objects  # takes long before the engine is there

            freeze_objects()  # a collection of all of Gradio's and torch's objects delays a poll by 0.4 s
        info = start.playground.engine.info
        _announce(address, f"is live at {address} ({info.model}, {info.device}, {info.dtype})", server)
    elif start.status.failure is not None:
        _refuse(start.status.failure.message)
        start.tell_pages(ended)
        server.should_exit = True


def _command_to_try(options: Options) -> str:
    """Returns what may well start where these options do not: the embedded model, without settings."""
    program = "python app.py" if sys.argv[0].endswith("app.py") else "roseplay play"
    return f"{program} --model {DEFAULT_MODEL}"


def _replay(listener: socket.socket, options: Options) -> int:
    """Serve the page of a recording."""
    from roseplay.play.replay_server import ReplayServer
    from roseplay.recording.reader import RecordingError

    try:
        replay = ReplayServer(str(options.replay))
    except RecordingError as error:
        return _refuse(str(error))
    with contextlib.suppress(KeyboardInterrupt):
        _serve(replay, listener, options, lambda address: f"is replaying {options.replay} at {address}")
    return 0


def _refuse(message: str) -> int:
    print(f"roseplay: {message}", file=sys.stderr)
    return 2


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _listen(host: str, port: int) -> socket.socket:
    """Bind the port before the model is loaded: a port in use should be reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # a browser that comes at once waits for its answer
    except OSError:
        listener.close()
        raise
    return listener


def _serve(playground: Any, listener: socket.socket, options: Options, said: Callable[[str], str]) -> None:
    """Run the server; ``said`` returns what it reports for its address."""
    server = _make_server(playground, options)
    address = _address(options.host, listener.getsockname()[1])
    threading.Thread(target=_announce, args=(address, said(address), server), daemon=True).start()
    server.run(sockets=[listener])


def _make_server(playground: Any, options: Options, start: EngineStart | None = None) -> Any:
    import uvicorn

    from roseplay.play.web.guard import allowed_hosts
    from roseplay.play.web.server import create_app

    logging.getLogger("httpx").setLevel(logging.WARNING)
    app = create_app(playground, allowed_hosts(options.host, options.allow_host), start)
    return uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2))


def _address(host: str, port: int) -> str:
    """Returns the address for a browser on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


def _announce(address: str, said: str, server: Any) -> None:
    """Report that the page is ready once it answers."""
    if all(_answers(address + path, server) for path in ("/health", "/")):
        print(f"roseplay {said}", flush=True)
    elif not server.should_exit:
        print(f"roseplay: the page did not answer within {PAGE_STARTS_WITHIN_S:g} s", file=sys.stderr)
        server.should_exit = True


def _answers(address: str, server: Any) -> bool:
    """Wait until an address answers; returns whether it did before its time was up or the server ended."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + PAGE_STARTS_WITHIN_S
    while time.monotonic() < deadline and not server.should_exit:
        try:
            opener.open(address, timeout=10).read()
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return True
    return False
