"""A tab of the page that an extension adds, and what stands behind it in a playground.

``session.py`` has the tabs of browsers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from roseplay.engine.engine_like import EngineLike
from roseplay.extensions import offered
from roseplay.traffic.pace import Speed

if TYPE_CHECKING:
    from fastapi import APIRouter


class TabBusyError(RuntimeError):
    """What a tab was asked for cannot be done while it does something else."""


class TabService(Protocol):
    """What a tab does with a playground's engine. One per playground."""

    @property
    def running(self) -> bool:
        """Whether it has the engine to itself: no demo plays meanwhile."""

    def close(self, timeout: float) -> None:
        """Stop for good, and wait up to ``timeout`` seconds for that."""


class MakeService(Protocol):
    def __call__(self, engine: EngineLike, speed: Callable[[], Speed | None], after: Any) -> TabService:
        """Returns the service of a playground.

        Args:
            speed: returns how fast the engine computes, None while that is unknown.
            after: the service of the previous engine, which has ended; None at first.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A tab between Live and Traces, where an engine runs."""

    # Of its service, routes (``/ui/NAME``), elements (``rp-NAME``), scripts (``NAME/…``), and in polls, which say
    # whether it is ``running``.
    name: str
    title: str
    busy: str  # a sentence that refuses a demo while it is running
    make: MakeService  # makes its service
    router: Callable[[Any], APIRouter]  # returns its routes, for a ``PageHost``
    build: Callable[[], None]  # adds its Gradio controls where it is called
    max_body: int  # the most bytes of a body that is posted to its routes
    static: Path  # the folder of its scripts and styles; its scripts import the page's as ``page/…``
    entry: str  # the script that is loaded with the page; all others are loaded with the tab
    styles: Sequence[str] = ()  # style sheets in their order, after the page's
    # Terms that its elements explain, as in ``play.terms.GLOSSARY``.
    glossary: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)  # data for its scripts
    about: Sequence[str] = ()  # sentences for the help
    keys: Sequence[tuple[str, str]] = ()  # its keys with what they do, for the help


def added_tabs() -> tuple[Tab, ...]:
    return offered("tab")
