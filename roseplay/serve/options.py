"""The flags of a server, with or without the web page."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from roseplay.arguments import within
from roseplay.serve.guard import EVERY_SITE, default_host

if TYPE_CHECKING:
    from roseplay.serve.traces import Traces

KEY_VARIABLE = "ROSEPLAY_API_KEY"
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(?:([a-z0-9._-]+)|\[([0-9a-f:.]+)])(?::0*([1-9][0-9]{,4}))?/?")
_USUAL_PORTS = {"http": "80", "https": "443"}  # which browsers leave out
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How a server listens, which clients it admits, and what it logs."""

    host: str = "127.0.0.1"
    port: int = 0
    allow_host: tuple[str, ...] = ()
    api_key: str | None = None  # required of every client, unless None
    log_level: str = "warning"
    log_requests: bool = False
    grace_s: float = 30.0  # how long API requests may take to finish when the server shuts down
    otlp_traces_endpoint: str | None = None  # where a span of each API request is sent; None sends none
    served_model_name: tuple[str, ...] = ()  # names that the model answers to, see ``ModelNames``
    allow_origin: tuple[str, ...] = ()  # web sites whose pages may use the API, see ``Guard``

    def traces(self) -> Traces | None:
        """Returns the sender of spans, if one was asked for. The caller closes it."""
        if self.otlp_traces_endpoint is None:
            return None
        from roseplay.serve.traces import Traces  # an extra

        return Traces(self.otlp_traces_endpoint)

    def configure_logging(self) -> None:
        """Log to standard error at this level. The engine's process inherits it."""
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
    group.add_argument(
        "--port", type=within(0, 65_535), default=port, help="0 picks any free port (default: %(default)s)"
    )
    group.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="NAME",
        help="another host name by which clients may address this server; may be repeated",
    )
    group.add_argument(
        "--allow-origin",
        action="extend",
        nargs="+",
        type=origin,
        metavar="ORIGIN",
        help="a web site, such as https://chat.example, whose pages may use the API, or * for all; may be repeated",
    )
    group.add_argument(
        "--served-model-name",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="a name by which clients may ask for the model, besides its own; /v1/models lists these instead",
    )
    group.add_argument(
        "--api-key",
        type=_key,
        default=os.environ.get(KEY_VARIABLE) or None,
        metavar="KEY",
        help="require this key of every client, as a bearer token or through a form in a browser (or set "
        f"{KEY_VARIABLE}, which other users of the machine cannot see)",
    )
    group.add_argument(
        "--log-level", choices=LEVELS, default="warning", metavar="|".join(LEVELS), help="(default: %(default)s)"
    )
    group.add_argument(
        "--log-requests", action="store_true", help="log a line for each request that ends, without its text"
    )
    group.add_argument(
        "--grace",
        dest="grace_s",
        type=within(0.0, 3600.0),
        default=30.0,
        metavar="SECONDS",
        help="how long running API requests may take to finish at shutdown (default: %(default)g)",
    )
    group.add_argument(
        "--otlp-traces-endpoint",
        type=_collector,
        metavar="URL",
        help="send a span for each API request to this OpenTelemetry collector, such as http://127.0.0.1:4318",
    )


def server_options(arguments: Mapping[str, Any]) -> ServerOptions:
    """Returns the options that the flags set. Raises ``ImportError``, one line, if a flag needs an extra that is missing."""
    if arguments["otlp_traces_endpoint"] is not None:
        import roseplay.serve.traces  # noqa: F401
    values = {field.name: arguments[field.name] for field in dataclasses.fields(ServerOptions)}
    lists = {name: tuple(values[name] or ()) for name in ("allow_host", "allow_origin", "served_model_name")}
    return ServerOptions(**{**values, **lists})


def _key(text: str) -> str:
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError("a key is printable ASCII without spaces")
    return text


def origin(text: str) -> str:
    """Returns a web site's origin as browsers send it, or one of ``EVERY_SITE``."""
    if text in EVERY_SITE:
        return text
    with suppress(ValueError):  # of an IPv6 address
        match = _ORIGIN.fullmatch(text.lower())
        if match is not None and int(match[4] or 0) < 2**16:
            site = f"{match[1]}://{match[2] or f'[{IPv6Address(match[3])}]'}"
            return site if match[4] in (None, _USUAL_PORTS.get(match[1])) else f"{site}:{match[4]}"
    raise argparse.ArgumentTypeError(
        f"{text!r} is not an origin: use SCHEME://HOST or SCHEME://HOST:PORT, or * for all"
    )


def _collector(text: str) -> str:
    try:
        parts = urlsplit(text)
        named = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # such as an invalid port
        named = False
    if not named:
        raise argparse.ArgumentTypeError(f"{text!r} is not the address of a collector: use http://HOST:4318")
    return text
