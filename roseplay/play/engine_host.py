"""The engine behind a page: started while the page is already served, and replaced on demand by another model's."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from roseplay.config import EngineConfig
from roseplay.engine.errors import EngineError, EngineStartError
from roseplay.formats.text import one_line
from roseplay.play.start_status import StartStatus

if TYPE_CHECKING:  # a start imports them after the page
    from roseplay.engine.engine_like import EngineLike
    from roseplay.play.chat_service import ChatService
    from roseplay.play.playground import Playground
    from roseplay.serve.submissions import Submissions

TELL_PAGES_S = 3.0  # how long the server goes on after a failed start; hidden pages poll once a second
PAGE_OPENS_WITHIN_S = 10.0  # how long after a page was requested its first poll may still come
_log = logging.getLogger(__name__)


class LoadBusyError(RuntimeError):
    """A model is being loaded, or there is nothing to cancel; the message is one line."""


class NotOfferedError(ValueError):
    """Visitors of this server may not load that model; the message is one line."""


@dataclasses.dataclass(eq=False)
class Start:
    """One start of an engine; ``status`` is its progress."""

    model: str
    name: str  # the model's display name
    config: EngineConfig
    knobs: Mapping[str, Any]  # the initial ones
    ids: itertools.count[int]  # numbers its requests, and those of later engines
    # Set once this process has imported what the page needs. Two threads that import large libraries slow each other
    # down, and the page comes first; a worker's process loads its model meanwhile.
    page_is_made: threading.Event
    told: bool = True  # whether clients may read why it fails, see ``StartStatus``
    after: Playground | None = None  # the previous one, which has ended
    number: int = 1  # counts the successful starts
    carried: bool = False  # whether the knobs are of the previous engine: those that this one cannot have are left out
    cancelled: threading.Event = dataclasses.field(default_factory=threading.Event)  # set to cancel the start
    playground: Playground | None = None  # set once the engine is live

    def __post_init__(self) -> None:
        self.status = StartStatus(self.name, told=self.told)


class EngineHost:
    """A ``PageHost`` that makes an engine and its playground in a thread of its own, and again for another model.

    It is first ``starting``, then ``live`` or ``failed``. ``switch`` ends the running engine and starts another; if
    that fails, the previous model is loaded again.

    Args:
        make: makes the playground of a start: reports to its ``status.take``, imports nothing large before
            ``page_is_made`` is set, and gives up once it is ``cancelled``. Raises ``ValueError``, ``OSError``,
            ``ImportError`` or ``RuntimeError`` with one line for the user on failure.
        model, config, knobs: of the first engine; ``name`` is the model's display name, ``model`` by default.
        command: a command to suggest if that fails.
        told: whether clients may read why a start fails, see ``StartStatus``.
    """

    def __init__(
        self,
        make: Callable[[Start], Playground],
        model: str,
        config: EngineConfig,
        knobs: Mapping[str, Any],
        command: str,
        *,
        name: str | None = None,
        told: bool = True,
    ) -> None:
        self.page_is_made = threading.Event()
        self.first_model = model
        self._make, self._command = make, command
        self._start = Start(model, name or model, config, dict(knobs), itertools.count(), self.page_is_made, told)
        self._before: Start | None = None  # to which a failed start returns
        self._lock = threading.Lock()
        self._over, self._closing = threading.Event(), threading.Event()
        self._asked_at: float | None = None
        self._thread = threading.Thread(target=self._run_first, name="roseplay-start", daemon=True)

    # -- the interface for the page, on the currently live playground

    replaying: str | None = None

    @property
    def playground(self) -> Playground:
        playground = self._start.playground
        if playground is None or not self._over.is_set():
            raise EngineError(self.status.sentence)
        return playground

    @property
    def engine(self) -> EngineLike:
        return self.playground.engine

    @property
    def submissions(self) -> Submissions:
        return self.playground.submissions

    @property
    def boot_id(self) -> str:
        return self.playground.boot_id

    @property
    def chats(self) -> ChatService:
        return self.playground.chats

    def knobs(self) -> dict[str, Any]:
        return dict(self.playground.knobs() if self.live else self._start.knobs)

    def set_knobs(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        return self.playground.set_knobs(changes)

    def recording(self, tab_id: str = "") -> Iterator[bytes]:
        return self.playground.recording(tab_id)

    def recorded(self) -> dict[str, object]:
        return self.playground.recorded()

    def delta(self, since: int, *, boot: str = "", tab_id: str = "", have: str = "") -> bytes:
        return self.playground.delta(since, boot=boot, tab_id=tab_id, have=have)

    # -- state

    @property
    def status(self) -> StartStatus:
        """The progress of the current or last start."""
        return self._start.status

    @property
    def state(self) -> Literal["starting", "live", "failed"]:
        if not self._over.is_set():
            return "starting"
        return "failed" if self._start.playground is None else "live"

    @property
    def live(self) -> bool:
        return self.state == "live"

    @property
    def over(self) -> bool:
        return self._over.is_set()

    @property
    def model(self) -> str:
        """The model that is live or being loaded."""
        return self._start.model

    @property
    def config(self) -> EngineConfig:
        return self._start.config

    @property
    def goes_back_to(self) -> str | None:
        """Name of the model that is loaded again if the running start is cancelled; None if it cannot be cancelled."""
        return self._before.name if self._before is not None and not self.over else None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the start is over; returns whether it is."""
        return self._over.wait(timeout)

    # -- actions

    def begin(self) -> None:
        """Begin the first start."""
        self._thread.start()

    def switch(self, model: str, config: EngineConfig, *, name: str | None = None) -> None:
        """End the running engine, giving that as the reason, and load another model; returns at once.

        Args:
            name: the model's display name, ``model`` by default.

        Raises:
            LoadBusyError: a model is being loaded, or the server is shutting down.
        """
        with self._lock:
            if self._closing.is_set():
                raise LoadBusyError("the server is shutting down and loads no other model")
            if not self._over.is_set():
                raise LoadBusyError(f"{self._start.name} is being loaded: wait for it, or cancel it")
            before = self._start
            knobs = self.knobs()
            self._before = before if before.playground is not None else None
            self._over.clear()
            self._start = self._next(before, model, name or model, config, knobs)
            self._thread = threading.Thread(target=self._run_switch, args=(before, self._start), name="roseplay-switch")
            self._thread.daemon = True
            self._thread.start()

    def cancel(self) -> str:
        """Cancel the running start and return to the previous model; returns its name.

        Raises:
            LoadBusyError: no start is running, or there is no previous model.
        """
        with self._lock:
            before = self.goes_back_to
            if before is None:
                raise LoadBusyError("there is nothing to cancel: no model is being loaded in place of another")
            self._start.cancelled.set()
            return before

    def close(self, within_s: float = 5.0) -> None:
        """Cancel the start, waiting for it up to ``within_s`` seconds, or close the engine that it has made."""
        with self._lock:
            self._closing.set()
            self._start.cancelled.set()
        self.page_is_made.set()
        if self._thread.is_alive():
            self._thread.join(within_s)
        if self._start.playground is not None:
            _close(self._start.playground)

    # -- the thread

    def _run_first(self) -> None:
        try:
            self._attempt(self._start)
        finally:
            self._over.set()

    def _run_switch(self, before: Start, start: Start) -> None:
        try:
            if before.playground is not None:
                before.playground.end(f"the model was changed to {start.name}")
            failure = self._attempt(start)
            if failure is not None and before.playground is not None and not self._closing.is_set():
                self._go_back(before, start, failure)
        except BaseException as error:  # the previous engine could not be ended
            _log.exception("the model could not be changed")
            self._start.status.fail(f"{type(error).__name__}: {one_line(error)}", "")
        finally:
            self._before = None
            before.playground = None  # frees everything that it keeps of its engine
            self._over.set()

    def _go_back(self, before: Start, failed: Start, failure: str) -> None:
        with self._lock:
            given_up = failed.cancelled.is_set()
            again = self._next(before, before.model, before.name, before.config, failed.knobs)
            why = f": {failure}" if failed.told else "; the server's terminal says why"
            again.status.note = "" if given_up else f"{failed.name} could not be loaded{why}"
            self._before, self._start = None, again
            if self._closing.is_set():
                return
        if self._attempt(again) is None and again.playground is not None and again.status.note:
            again.playground.notice = f"{again.status.note.rstrip('.')}. {before.name} is running again."

    def _next(self, before: Start, model: str, name: str, config: EngineConfig, knobs: Mapping[str, Any]) -> Start:
        number = before.number + 1 if before.playground is not None else before.number
        return dataclasses.replace(
            before,
            model=model, name=name, config=config, knobs=knobs, after=before.playground or before.after, number=number,
            carried=True, cancelled=threading.Event(), playground=None,
        )  # fmt: skip

    def _attempt(self, start: Start) -> str | None:
        """Make the playground of a start; returns why that failed, without the model's name, or None."""
        try:
            playground = self._make(start)
            try:
                playground.start()
                with self._lock:  # from here on it cannot be cancelled
                    if start.cancelled.is_set():
                        raise EngineError("the start was cancelled")
                    start.playground, start.after, self._before = playground, None, None
            except BaseException:
                _close(playground)
                raise
            start.status.end()
            return None
        except (ValueError, OSError, ImportError, RuntimeError) as error:
            failure = one_line(error) or type(error).__name__
            reason = error.reason if isinstance(error, EngineStartError) else failure
        except BaseException as error:  # a panic in an extension is not an Exception
            _log.exception("the engine could not be started")
            failure = reason = f"{type(error).__name__}: {one_line(error)}"
        start.status.fail(failure, self._command if start.after is None else "")
        return reason

    # -- pages that are open

    def asked(self) -> None:
        """Note that a page was requested, or polls the start's progress."""
        self._asked_at = time.monotonic()

    def tell_pages(self, ended: threading.Event) -> None:
        """Give open pages the time to poll once more, so that they show why the start failed."""
        if self._asked_at is not None and time.monotonic() - self._asked_at < PAGE_OPENS_WITHIN_S:
            ended.wait(TELL_PAGES_S)


def _close(playground: Playground) -> None:
    playground.close()
    playground.engine.close()
