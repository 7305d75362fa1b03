"""What extensions offer to ``roseplay play``: engines that run elsewhere, which the page shows instead of one here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from roseplay.arguments import Parser
from roseplay.engine.engine_like import EngineLike


@dataclass(frozen=True, slots=True)
class Elsewhere:
    name: str  # as the page shows it while it connects
    # Connects to it. Called with a function that takes a line on what it waits for, and an event that is set to cancel
    # it. Raises ``EngineStartError``.
    open: Callable[[Callable[[str], None], threading.Event], EngineLike]
    # The flag that asked for it, such as ``--url``, and what it does, to refuse flags that need an engine here.
    flag: str


class EngineSource(Protocol):
    """Flags that name engines elsewhere."""

    def add_flags(self, parser: Parser) -> None:
        """Add the flags, in a group of their own."""

    def elsewhere(self, arguments: Mapping[str, Any], page_key: str | None) -> Elsewhere | None:
        """Returns the engine that the flags name, or None.

        Args:
            page_key: the key given for the page by a flag.

        Raises:
            ValueError: the flags contradict each other.
        """
