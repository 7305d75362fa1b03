"""Start the page: read the command line, bind the port, load the model, serve, report when it is ready."""

from __future__ import annotations

import contextlib
import dataclasses
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
from roseplay.play.options import Options, parse

PAGE_STARTS_WITHIN_S = 60.0
# With the embedded model a pool of the usual size would look empty. These blocks fill seven rows of the block map,
# and a large burst runs out of them. ``--num-blocks`` and ``--kv-cache-memory`` override it.
WATCHABLE_BLOCKS = 449
# Its matrices are too small for a second thread to help, and the browser needs a core. ``--threads`` overrides it.
EMBEDDED_THREADS = 1


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
    """Serve the page of an engine."""
    if options.record and Path(options.record).exists():  # checked before the model is loaded
        return _refuse(f"{options.record!r} is there already: name a new file with --record, or remove it")
    if options.config.worker == "process":  # else this process computes
        return_freed_memory()
    try:
        engine = _start_engine(options)
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        return _refuse(_one_line(error))
    from roseplay.play.playground import Playground

    info = engine.info
    with contextlib.closing(engine):
        try:
            playground = Playground(engine, record=options.record)
        except OSError as error:
            return _refuse(f"the recording {options.record!r} cannot be written: {error.strerror or error}")
        about = f"({info.model}, {info.device}, {info.dtype})"
        with contextlib.suppress(KeyboardInterrupt):
            _serve(playground, listener, options, lambda address: f"is live at {address} {about}")
    return 0


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
    except OSError:
        listener.close()
        raise
    return listener


def _start_engine(options: Options) -> Any:
    from roseplay.engine.client import Engine

    config = options.config
    if options.model == DEFAULT_MODEL:
        if config.num_blocks is None and config.kv_cache_memory is None:
            config = dataclasses.replace(config, num_blocks=WATCHABLE_BLOCKS)
        if config.threads is None:
            config = dataclasses.replace(config, threads=EMBEDDED_THREADS)
    return Engine(options.model, config=config, knobs=options.knobs)


def _serve(playground: Any, listener: socket.socket, options: Options, said: Callable[[str], str]) -> None:
    """Run the server; ``said`` returns what it reports for its address."""
    import uvicorn

    from roseplay.play.web.guard import allowed_hosts
    from roseplay.play.web.server import create_app

    logging.getLogger("httpx").setLevel(logging.WARNING)
    app = create_app(playground, allowed_hosts(options.host, options.allow_host))
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    address = _address(options.host, listener.getsockname()[1])
    threading.Thread(target=_announce, args=(address, said(address), server), daemon=True).start()
    server.run(sockets=[listener])


def _address(host: str, port: int) -> str:
    """Returns the address for a browser on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"


def _announce(address: str, said: str, server: Any) -> None:
    """Report that the page is ready once it answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + PAGE_STARTS_WITHIN_S
    while time.monotonic() < deadline and not server.should_exit:
        try:
            for path in ("/health", "/"):
                opener.open(address + path, timeout=10).read()
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
            continue
        print(f"roseplay {said}", flush=True)
        return
    if not server.should_exit:
        print(f"roseplay: the page did not answer within {PAGE_STARTS_WITHIN_S:g} s", file=sys.stderr)
        server.should_exit = True
