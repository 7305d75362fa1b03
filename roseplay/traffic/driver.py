"""Plays a workload against an engine through its public API and records the outcome of each request."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

from roseplay.engine.engine_like import EngineLike
from roseplay.engine.errors import EngineBusyError
from roseplay.engine.stream import Stream
from roseplay.traffic.sending import send_when_due
from roseplay.traffic.workload import Arrival, Workload

MAX_REQUESTS = 10_000
POLL_S = 0.25  # between checks for a stop while waiting for an answer
CLIENT_S = 0.001  # between two looks whether a client has its answer
ABORT_GRACE_S = 10.0  # for aborted requests to end


@dataclass(slots=True)
class Outcome:
    """The outcome of one arrival. Times are in ns of the engine's clock."""

    arrival: Arrival
    stream: Stream | None  # the answer; ``None`` if ``submit`` refused the request
    # The intended arrival. A single thread sends all requests, so ``submit`` is called later if the previous call
    # returned late, as under blocking admission.
    due_ns: int
    submit_start_ns: int  # start and end of the call of ``submit``
    submit_end_ns: int
    refused: str | None = None  # the message of the refusal, if any

    @property
    def ttft_from_arrival_s(self) -> float | None:
        """First token − intended arrival, in seconds; ``None`` without a first token."""
        first_ns = None if self.stream is None else self.stream.metrics.first_token_ns
        return None if first_ns is None else (first_ns - self.due_ns) / 1e9


@dataclass(slots=True)
class Played:
    """The outcomes of a workload."""

    outcomes: list[Outcome] = field(default_factory=list)  # one for each arrival that was sent, in order
    not_sent: int = 0  # arrivals after a stop or the time limit
    stopped: str | None = None  # why it ended early: ``"stopped"``, ``"time limit"``, or ``None``

    @property
    def submit_wall_s(self) -> float:
        """Seconds from the first call of ``submit`` to the return of the last."""
        if not self.outcomes:
            return 0.0
        return (self.outcomes[-1].submit_end_ns - self.outcomes[0].submit_start_ns) / 1e9


class Driver:
    """Sends each arrival at its time (late ones at once, in order) and waits for the answers.

    Arrivals do not wait for answers, so that a slow engine does not slow the traffic down, unless there are ``clients``.

    Args:
        engine: receives the requests.
        workload: at most ``MAX_REQUESTS`` arrivals.
        time_limit_s: after this time nothing more is sent, and running requests are aborted.
        clients: if given, as many send one request after the other, each as soon as its last was answered.
        on_sent: called with each outcome when it is sent.

    Raises:
        ValueError: the workload is empty, too long or out of order, or the time limit is not above 0.
    """

    def __init__(
        self,
        engine: EngineLike,
        workload: Workload,
        *,
        time_limit_s: float = 600.0,
        clients: int | None = None,
        on_sent: Callable[[Outcome], None] | None = None,
    ) -> None:
        if not 1 <= len(workload) <= MAX_REQUESTS:
            raise ValueError(f"the workload has {len(workload)} requests: use 1 to {MAX_REQUESTS}")
        if any(later.at_s < earlier.at_s for earlier, later in itertools.pairwise(workload)):
            raise ValueError("the workload's arrivals are out of order: sort them by at_s")
        if not time_limit_s > 0:
            raise ValueError(f"the time limit is {time_limit_s}: use seconds above 0")
        self._engine = engine
        self._clock = engine.clock
        self._workload = workload
        self._time_limit_s, self._deadline_s = time_limit_s, math.inf
        self._on_sent, self._clients = on_sent, clients
        self._stop = threading.Event()
        self._played = Played()
        self._unanswered: list[Stream] = []

    def run(self) -> Played:
        """Play the workload to its end on the calling thread."""
        start_ns = self._clock.now_ns()
        self._deadline_s = start_ns / 1e9 + self._time_limit_s
        send_when_due(self._clock, self._stop, self._due_s, self._send, start_ns=start_ns, limit=self._limit)
        self._played.not_sent = len(self._workload) - len(self._played.outcomes)
        self._await_answers()
        return self._played

    def start(self) -> Future[Played]:
        """Play the workload on a thread of its own; the future has its outcomes, or the error that ended it."""
        playing: Future[Played] = Future()
        thread = threading.Thread(target=self._run_in_thread, args=(playing,), name="roseplay-traffic", daemon=True)
        thread.start()
        return playing

    def stop(self) -> None:
        """Send nothing more and abort running requests; returns at once and may be called again."""
        self._stop.set()

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9

    def _run_in_thread(self, playing: Future[Played]) -> None:
        try:
            playing.set_result(self.run())
        except BaseException as error:
            playing.set_exception(error)

    def _due_s(self) -> float | None:
        sent = len(self._played.outcomes)
        if sent == len(self._workload):
            return None
        if self._clients is None:
            return self._workload[sent].at_s
        self._unanswered = [stream for stream in self._unanswered if not stream.finished]
        wait_s = CLIENT_S if len(self._unanswered) >= self._clients else 0.0
        return self._now_s() + self._time_limit_s - self._deadline_s + wait_s

    def _limit(self) -> str | None:
        """Returns why it has to end early; ``None`` while it does not."""
        if self._stop.is_set():
            return "stopped"
        return "time limit" if self._now_s() >= self._deadline_s else None

    def _send(self, due_ns: int) -> None:
        outcome = self._submit(self._workload[len(self._played.outcomes)], due_ns)
        self._played.outcomes.append(outcome)
        if outcome.stream is not None:
            self._unanswered.append(outcome.stream)
        if self._on_sent is not None:
            self._on_sent(outcome)

    def _submit(self, arrival: Arrival, due_ns: int) -> Outcome:
        start_ns = self._clock.now_ns()
        try:
            stream = self._engine.submit(arrival.prompt, arrival.params)
        except (ValueError, EngineBusyError) as error:
            return Outcome(arrival, None, due_ns, start_ns, self._clock.now_ns(), refused=str(error))
        return Outcome(arrival, stream, due_ns, start_ns, self._clock.now_ns())

    def _await_answers(self) -> None:
        streams = [outcome.stream for outcome in self._played.outcomes if outcome.stream is not None]
        if self._played.not_sent:
            self._played.stopped = self._limit()
        for stream in streams:
            while not stream.finished and self._played.stopped is None:
                self._played.stopped = self._limit()
                left_s = self._deadline_s - self._now_s()
                with suppress(TimeoutError):
                    stream.result(timeout=max(0.0, min(left_s, POLL_S)))
        if self._played.stopped is not None:
            self._abort(streams)

    def _abort(self, streams: list[Stream]) -> None:
        for stream in streams:
            if not stream.finished:
                stream.cancel()
        until = self._now_s() + ABORT_GRACE_S
        for stream in streams:
            with suppress(TimeoutError):
                stream.result(timeout=max(0.0, until - self._now_s()))
