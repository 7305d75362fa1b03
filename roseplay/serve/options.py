"""The flags of a server, for the page and for the API alone."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roseplay.serve.guard import default_host

KEY_VARIABLE = "ROSEPLAY_API_KEY"
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server listens, whom it lets in, and what it logs.

    Attributes:
        api_key: asked of every client, if there is one.
        grace_s: how long requests of the API may take to finish when the server is to end.
    """

    host: str = "127.0.0.1"
    port: int = 0
    allow_host: tuple[str, ...] = ()
    api_key: str | None = None
    log_level: str = "warning"
    log_requests: bool = False
    grace_s: float = 30.0

    def configure_logging(self) -> None:
        """Log to standard error from the level on. The engine's process takes the level over."""
        logging.basicConfig(
            level=self.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
        )
        if self.log_requests:
            logging.getLogger("roseplay.requests").setLevel(logging.INFO)
        for chatty in ("httpx", "asyncio", "urllib3", "matplotlib"):
            logging.getLogger(chatty).setLevel(logging.WARNING)


def add_server_flags(parser: Any, port: int) -> None:
    """Add the flags to a parser; ``port`` is the default port."""
    group = parser.add_argument_group("server")
    group.add_argument("--host", default=default_host(), help="address to listen on (default: %(default)s)")
    group.add_argument("--port", type=_port, default=port, help="0 takes any free port (default: %(default)s)")
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another host name under which this server may be asked; may be repeated",
    )
    group.add_argument(
        "--api-key",
        type=_key,
        default=os.environ.get(KEY_VARIABLE) or None,
        metavar="KEY",
        help=f"ask every client for this key: a bearer token, or a form in a browser (or set {KEY_VARIABLE}, which other"
        " users of the machine cannot see)",
    )
    group.add_argument(
        "--log-level", choices=LEVELS, default="warning", metavar="|".join(LEVELS), help="(default: %(default)s)"
    )
    group.add_argument(
        "--log-requests", action="store_true", help="log a line for each request that ends, without texts"
    )
    group.add_argument(
        "--grace",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="at the end, how long requests of the API may take to finish (default: %(default)g)",
    )


def server_options(arguments: Mapping[str, Any]) -> ServerOptions:
    """Returns what the flags say."""
    return ServerOptions(
        host=arguments["host"],
        port=arguments["port"],
        allow_host=tuple(arguments["allow_host"]),
        api_key=arguments["api_key"],
        log_level=arguments["log_level"],
        log_requests=arguments["log_requests"],
        grace_s=arguments["grace"],
    )


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: use 0 to 65535")
    return int(text)


def _key(text: str) -> str:
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError("a key is printable ASCII without spaces")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: use seconds from 0 to 3600")
    return seconds
