"""The flags of ``roseplay play`` that name other servers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from roseplay.arguments import Parser, within
from roseplay.engine.engine_like import EngineLike
from roseplay.extras.servers.address import ServerAddress, add_url_flags, server_addresses, steps_nearby
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
        addresses = server_addresses(arguments)
        if not addresses:
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
    while True:
        steps = address.steps or steps_nearby(address.url)
        try:
            return HttpEngine(address.url, api_key=address.api_key, model=address.model, steps=steps, others=others)
        except NotReadyError as error:
            left_s = until - time.monotonic()
            if left_s <= 0 or cancelled.is_set():
                raise
            tell(f"It is tried again for {left_s:.0f} s: {error}")
            cancelled.wait(min(AGAIN_S, left_s))


OTHER_SERVERS = OtherServers()
