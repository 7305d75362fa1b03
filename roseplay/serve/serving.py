"""What ``roseplay serve`` serves: one engine, or what an extension offers instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from roseplay.arguments import Parser
from roseplay.config import EngineConfig, Knobs
from roseplay.serve.options import ServerOptions

if TYPE_CHECKING:
    from fastapi import APIRouter

    from roseplay.serve.app import ServedEngine
    from roseplay.serve.monitor import Monitor


@dataclass(frozen=True)
class Options:
    """The parsed command line."""

    model: str
    server: ServerOptions
    config: EngineConfig
    knobs: Knobs
    opener: Opener | None = None  # starts what is served, if an extension's flags ask for it; None serves one engine
    chosen: str | None = None  # message about the model that was chosen because none was asked for


@dataclass(frozen=True, slots=True)
class Served:
    """What a server serves: an engine, what watches it (None: a ``Monitor``), and routes besides the API's."""

    engine: ServedEngine
    monitor_class: type[Monitor] | None = None
    routers: Sequence[APIRouter] = ()


# Starts what is served, until the context ends. Raises ``EngineStartError``, ``ValueError`` or ``OSError``, one line.
Opener = Callable[[Options], AbstractContextManager[Served]]


class Serving(Protocol):
    """A way to serve that flags ask for."""

    def add_flags(self, parser: Parser) -> None:
        """Add the flags, in a group of their own."""

    def opener(self, arguments: Mapping[str, Any]) -> Opener | None:
        """Returns what starts it, or None if the flags do not ask for it.

        Raises:
            ValueError: the flags contradict each other.
            ImportError: a package is not installed; the message is one line.
        """
