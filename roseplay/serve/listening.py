"""A server's address: bound before anything is loaded, and announced once it answers."""

from __future__ import annotations

import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

STARTS_WITHIN_S = 60.0


def listen(host: str, port: int, *, accept: bool = True) -> socket.socket:
    """Bind a port before the model is loaded, so that a port in use is reported at once.

    Args:
        accept: whether clients may already connect and wait; else they are refused until the server runs.

    Raises:
        OSError: the port cannot be used; the message says so and what to do.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        if accept:
            listener.listen()
    except OSError as error:
        listener.close()
        why = error.strerror or error
        raise OSError(
            f"port {port} of {host} cannot be used: {why}; choose another with --port; 0 picks a free one"
        ) from None
    return listener


def address_of(listener: socket.socket, host: str) -> str:
    """Returns the address of a server for a client on this machine."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{listener.getsockname()[1]}"


def announce(address: str, paths: Sequence[str], said: str, server: Any, *, within_s: float = STARTS_WITHIN_S) -> None:
    """Report that a server is ready once it answers; end it if it does not answer in time."""
    if all(answers(address + path, server, within_s) for path in paths):
        print(f"roseplay {said}", flush=True)
    elif not server.should_exit:
        print(f"roseplay: the server did not answer within {within_s:g} s", file=sys.stderr)
        server.should_exit = True


def answers(address: str, server: Any, within_s: float = STARTS_WITHIN_S) -> bool:
    """Wait until an address answers; returns whether it did within that time and before the server ended."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline and not server.should_exit:
        try:
            opener.open(address, timeout=10).read()
        except urllib.error.HTTPError as refused:
            if refused.code == 401:  # it answers clients that have the key
                return True
            time.sleep(0.1)
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
        else:
            return True
    return False
