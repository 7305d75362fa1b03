"""Starting the engine while the page is served already."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from roseplay.engine.errors import EngineError
from roseplay.engine.http.address import ServerAddress
from roseplay.own_models import called
from roseplay.play.options import Options
from roseplay.play.start_status import StartStatus
from roseplay.texts import one_line

TELL_PAGES_S = 3.0  # that the server goes on after a failed start; hidden pages ask once a second
PAGE_OPENS_WITHIN_S = 10.0  # after it was asked for; until then its first poll may still come
CLOSE_WITHIN_S = 5.0
_log = logging.getLogger(__name__)


class EngineStart:
    """Makes the engine and its playground in a thread of its own.

    Args:
        make: makes the playground of ``this`` start: reports to ``status.take``, imports nothing large before
            ``page_is_made`` is set, and gives up once ``cancelled`` is set. Raises ``ValueError``, ``OSError``,
            ``ImportError`` or ``RuntimeError`` with one line for the user if it cannot be done.
        model: its name.
        command: a command to try if it fails.

    Attributes:
        status: how far it is.
        playground: once the engine is live.
        resources: closed with the engine, just before it.
        page_is_made: set once this process has imported what the page needs. Two threads that import large libraries get
            in each other's way, and the page comes first; a worker's process loads its model meanwhile.
    """

    def __init__(self, make: Callable[[EngineStart], Any], model: str, command: str) -> None:
        self.status = StartStatus(model)
        self.playground: Any = None
        self.resources = contextlib.ExitStack()
        self.cancelled, self.page_is_made = threading.Event(), threading.Event()
        self._make, self._command = make, command
        self._over = threading.Event()
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="roseplay-start", daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the start is over; returns whether it is."""
        return self._over.wait(timeout)

    @property
    def over(self) -> bool:
        return self._over.is_set()

    @property
    def live(self) -> bool:
        return self.over and self.status.failure is None

    def _run(self) -> None:
        try:
            self.playground = self._make(self)
            self.playground.start()
            self.status.end()
        except (ValueError, OSError, ImportError, RuntimeError) as error:
            self.status.fail(one_line(error) or type(error).__name__, self._command)
        except BaseException as error:  # a panic in an extension is no Exception
            _log.exception("the engine could not be started")
            self.status.fail(f"{type(error).__name__}: {one_line(error)}", self._command)
        finally:
            self._over.set()

    # -- while it lasts

    def asked(self) -> None:
        """Note that a page was asked for, or asks how far the start is."""
        self._asked_at = time.monotonic()

    def tell_pages(self, ended: threading.Event) -> None:
        """Give pages that are open the time to ask once more why it failed."""
        if self._asked_at is not None and time.monotonic() - self._asked_at < PAGE_OPENS_WITHIN_S:
            ended.wait(TELL_PAGES_S)

    def close(self) -> None:
        """Give the start up, or close the engine that it has made."""
        self.cancelled.set()
        self.page_is_made.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_WITHIN_S)
        if self.playground is not None:
            self.playground.close()
            self.resources.close()
            self.playground.engine.close()


class Later:
    """Stands for an object that is there once the engine is live.

    Args:
        find: returns the object; raises ``EngineError`` while there is none.
    """

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    def __getattr__(self, name: str) -> Any:
        return getattr(self._find(), name)


class StartingPlayground:
    """Takes the place of ``Playground`` for a page that is made before the engine is live; then it is that playground.

    Args:
        knobs: those that the engine starts with.
    """

    replaying: str | None = None

    def __init__(self, start: EngineStart, knobs: dict[str, Any]) -> None:
        self._start = start
        self._knobs = knobs
        # Routes and endpoints take these when they are made.
        for name in ("engine", "chats", "traffic", "demos", "lab", "submissions", "tabs"):
            setattr(self, name, Later(lambda name=name: getattr(self._live(), name)))  # type: ignore[misc]

    def start(self) -> None:
        """Nothing to start: ``EngineStart`` starts the playground."""

    def close(self) -> None:
        """Nothing to close: ``EngineStart`` closes it."""

    def knobs(self) -> dict[str, Any]:
        """Returns the engine's knobs, or those that it starts with."""
        return dict(self._start.playground.knobs() if self._start.playground is not None else self._knobs)

    def _live(self) -> Any:
        if self._start.playground is None:
            raise EngineError(self._start.status.sentence)
        return self._start.playground

    def __getattr__(self, name: str) -> Any:
        return getattr(self._live(), name)


def start_engine(options: Options, command: str) -> EngineStart:
    """Returns a start, not yet begun, of the engine that the command line asks for."""

    def make(start: EngineStart) -> Any:
        engine = _attach(options.addresses[0]) if options.addresses else _load(options, start)
        start.page_is_made.wait()
        try:
            from roseplay.play.playground import Playground

            start.resources.enter_context(options.server.publishing(engine))
            try:
                return Playground(engine, record=options.record, servers=options.addresses[1:])
            except OSError as error:
                why = error.strerror or error
                raise OSError(f"the recording {options.record!r} cannot be written: {why}") from None
        except BaseException:
            start.resources.close()
            engine.close()
            raise

    return EngineStart(make, options.addresses[0].url if options.addresses else called(options.model), command)


def _load(options: Options, start: EngineStart) -> Any:
    from roseplay.engine.client import Engine

    return Engine(
        options.model,
        config=options.config,
        knobs=options.knobs,
        cancelled=start.cancelled,
        on_progress=start.status.take,
        import_after=start.page_is_made,
    )


def _attach(address: ServerAddress) -> Any:
    from roseplay.engine.http.engine import HttpEngine

    return HttpEngine(address.url, api_key=address.api_key, model=address.model)
