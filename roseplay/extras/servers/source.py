"""The flags of ``roseplay play`` that name other servers."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from roseplay.arguments import Parser, within
from roseplay.engine.engine_like import EngineLike
from roseplay.engine.errors import EngineStartError
from roseplay.extras.servers.address import DEFAULT_STEPS, ServerAddress, StepsAddress, add_url_flags, server_addresses
from roseplay.play.engine_source import Elsewhere

WAIT_S = 600.0  # a large model takes minutes to load
AGAIN_S = 1.0


class OtherServers:
    """Shows other servers with OpenAI's API, see ``play.engine_source.EngineSource``."""

    def add_flags(self, parser: Parser) -> None:
        group = parser.add_argument_group("another server instead of an engine")
        add_url_flags(group)
        group.add_argument(
            "--url-wait",
            type=within(0, 86_400),
            default=WAIT_S,
            metavar="SECONDS",
            help=f"how long to wait for the server of --url while it starts (default: {WAIT_S:g})",
        )

    def elsewhere(self, arguments: Mapping[str, Any], page_key: str | None) -> Elsewhere | None:
        """Returns the server of ``--url``; the key of the page is also that of the server, unless it has one."""
        if not (addresses := server_addresses(arguments)):
            return None
        first, others = addresses[0], addresses[1:]
        if first.api_key is None:
            first = replace(first, api_key=page_key)
        opened = partial(_open, first, others, arguments["url_wait"])
        return Elsewhere(first.url, opened, "--url shows a server that runs already")


def _open(
    address: ServerAddress,
    others: tuple[ServerAddress, ...],
    within_s: float,
    tell: Callable[[str], None],
    cancelled: threading.Event,
) -> EngineLike:
    """Connect to a server, if need be once it has started; see ``Elsewhere.open``."""
    from roseplay.extras.servers.engine import HttpEngine
    from roseplay.extras.servers.server import NotReadyError

    until = time.monotonic() + within_s
    steps = address.steps or _steps_nearby(address.url)
    while True:
        try:
            return HttpEngine(address.url, api_key=address.api_key, model=address.model, steps=steps, others=others)
        except NotReadyError as error:
            left_s = until - time.monotonic()
            if left_s <= 0 or cancelled.is_set():
                raise
            tell(f"It is tried again for {left_s:.0f} s: {error}")
            cancelled.wait(min(AGAIN_S, left_s))
            steps = address.steps or _steps_nearby(address.url)
        except EngineStartError:
            if steps is address.steps:
                raise
            steps = address.steps  # those nearby are another server's, or need a key


def _steps_nearby(url: str) -> StepsAddress | None:
    """Returns where a vLLM on this machine usually tells its steps, if the server of ``url`` is here and something listens."""
    here = urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1") and importlib.util.find_spec("zmq") is not None
    with socket.socket() as probe:
        return StepsAddress(DEFAULT_STEPS) if here and probe.connect_ex(("127.0.0.1", 5601)) == 0 else None


OTHER_SERVERS = OtherServers()
