"""An ASGI application at a free port of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn

from tests.waiting import wait_until


@contextmanager
def at_a_port(app: Any, log_level: str = "critical") -> Iterator[str]:
    """Serve an application at a free port; yields its address."""
    with running(uvicorn.Server(uvicorn.Config(app, log_level=log_level, timeout_graceful_shutdown=1))) as address:
        yield address


_free_ports: list[int] = []  # of servers that have stopped: a browser has cached their files


@contextmanager
def running(server: uvicorn.Server) -> Iterator[str]:
    """Run a server at a free port; yields its address, and afterwards stops the server if it is still running."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(listener)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        wait_until(lambda: server.started, "the server starts")
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(timeout=10)
    if not thread.is_alive():
        _free_ports.append(port)


def _bind(listener: socket.socket) -> None:
    with suppress(IndexError, OSError):  # no port is left, or another program has taken it
        return listener.bind(("127.0.0.1", _free_ports.pop()))
    listener.bind(("127.0.0.1", 0))
