"""Sends commands to a worker and receives its events: queues for a thread, a queue and a pipe for a process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from roseplay.clock import SYSTEM_CLOCK, Clock
from roseplay.config import EngineConfig, Knobs
from roseplay.engine.load_runner import load_model_runner
from roseplay.engine.messages import Command, Event, Shutdown
from roseplay.engine.processes import FOLLOWER_GONE, freeze_objects, leave_signals_to_parent
from roseplay.engine.run_worker import run_worker
from roseplay.engine.runner import RunnerFactory

HEARTBEAT_S = 0.25


class WorkerGoneError(RuntimeError):
    """The worker ended unexpectedly."""


class Transport(Protocol):
    """One running worker."""

    replaceable: bool

    @property
    def pid(self) -> int | None:
        """The id of the worker's process; ``None`` for a thread."""

    def send(self, command: Command) -> None:
        """Send a command; never blocks."""

    def receive(self, timeout: float) -> Event | None:
        """Returns the next event, or ``None`` after ``timeout`` seconds. Raises ``WorkerGoneError``."""

    def stopped_for_s(self) -> float:
        """Returns the seconds since the worker's process was last seen running; 0 for a thread."""

    def stop(self, timeout: float) -> None:
        """Ask the worker to end and wait for it; after ``timeout`` seconds a process is killed."""

    def kill(self) -> None:
        """Kill the worker, if it is a process."""


# Starts a worker for a model; the last argument says whether it sends ``Progress`` events while it starts.
TransportFactory = Callable[[Any, EngineConfig, Knobs, Clock, bool], Transport]


class QueueInbox:
    """A worker's inbox over any queue with ``get`` and ``empty``; ``read`` decodes an item."""

    def __init__(self, commands: Any, read: Callable[[Any], Command] = lambda command: command) -> None:
        self._commands = commands
        self._read = read

    def take(self, timeout: float | None) -> list[Command]:
        commands: list[Command] = []
        if timeout is None or timeout > 0:
            with contextlib.suppress(queue.Empty):
                commands.append(self._read(self._commands.get(True, timeout)))
        while not self._commands.empty():
            commands.append(self._read(self._commands.get(False)))
        return commands


class ThreadTransport:
    """The worker is a thread of this process; ``make_runner`` makes what runs its model."""

    replaceable = False
    pid = None

    def __init__(
        self,
        model: Any,
        config: EngineConfig,
        knobs: Knobs,
        clock: Clock = SYSTEM_CLOCK,
        reports: bool = False,
        make_runner: RunnerFactory = load_model_runner,
    ) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=run_worker,
            args=(model, config, knobs, QueueInbox(self._commands), self._events.put),
            kwargs={"clock": clock, "make_runner": make_runner, "reports": reports},
            name="roseplay-worker",
            daemon=True,
        )
        self._thread.start()

    def send(self, command: Command) -> None:
        self._commands.put(command)

    def receive(self, timeout: float) -> Event | None:
        try:
            return self._events.get(True, timeout)
        except queue.Empty:
            if not self._thread.is_alive() and self._events.empty():
                raise WorkerGoneError("the engine's thread ended") from None
            return None

    def stopped_for_s(self) -> float:
        return 0.0

    def stop(self, timeout: float) -> None:
        self._commands.put(Shutdown())
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def kill(self) -> None:
        """Ask the thread to end; it cannot be killed."""
        self._commands.put(Shutdown())


class ProcessTransport:
    """The worker is a spawned process; when it dies, its pipe closes, which shows at once."""

    replaceable = True

    def __init__(self, model: Any, config: EngineConfig, knobs: Knobs, reports: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        with _held_back("SIGHUP"):  # starts multiprocessing's resource tracker, which must outlive the signal
            self._commands: Any = context.Queue()
        self._commands._ignore_epipe = True  # type: ignore[attr-defined]  # ``kill`` may close its pipe
        self._events, child_end = context.Pipe(duplex=False)
        self._heartbeat = Heartbeat(context.RawValue(ctypes.c_uint64, 0))
        self._process = context.Process(
            target=_process_main,
            args=(
                *(model, config, knobs, self._commands, child_end),
                *(self._heartbeat.count, logging.getLogger().level, reports),
            ),
            name="roseplay-worker",
            daemon=config.tensor_parallel_size == 1,  # daemons may have no children
        )
        with _held_back("SIGINT", "SIGHUP"):
            self._process.start()
        child_end.close()  # else the pipe would outlive the child

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def send(self, command: Command) -> None:
        # Here, where an error can be raised: the queue's own thread would drop what it cannot pickle.
        data = pickle.dumps(command)
        with contextlib.suppress(ValueError):  # the queue was closed in the meantime: all streams have ended
            self._commands.put(data)

    def receive(self, timeout: float) -> Event | None:
        try:
            if not self._events.poll(timeout):
                return None
            event: Event = self._events.recv()
            return event
        except (EOFError, OSError):
            self._process.join(1.0)
            code = self._process.exitcode
            why = "a process of its tensor parallel group ended" if code == FOLLOWER_GONE else f"exit code {code}"
            raise WorkerGoneError(f"the engine's process ended ({why})") from None
        except Exception as error:
            raise WorkerGoneError(f"the engine's process sent what cannot be read ({error})") from None

    def stopped_for_s(self) -> float:
        return self._heartbeat.missing_for_s()

    def stop(self, timeout: float) -> None:
        self.send(Shutdown())
        self._process.join(timeout)
        self.kill()

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()
            self._process.join(5.0)
        self._commands.cancel_join_thread()
        self._commands.close()
        writer = self._commands._thread
        if writer is not None:
            writer.join(0.2)
            if writer.is_alive():  # it waits in a write to a full pipe, which fails once the pipe has no reader
                self._commands._reader.close()


class Heartbeat:
    """Watches a counter in shared memory that another process increments as long as it runs.

    Args:
        count: incremented by the other process every ``HEARTBEAT_S`` seconds.
        clock: returns the time in seconds.
    """

    def __init__(self, count: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = count
        self._clock = clock
        self._seen = count.value
        self._seen_at = self._looked_at = clock()

    def missing_for_s(self) -> float:
        """Returns for how many seconds the counter has not changed while this process was watching it."""
        now, seen = self._clock(), self.count.value
        looked_at, self._looked_at = self._looked_at, now
        if now - looked_at > 4 * HEARTBEAT_S:  # this process itself did not run, or did not look
            self._seen_at = now
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        return now - self._seen_at


@contextlib.contextmanager
def _held_back(*names: str) -> Iterator[None]:
    """While entered, processes start with these signals blocked, which a terminal sends to its whole process group."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {getattr(signal, name) for name in names})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _process_main(
    model: Any,
    config: EngineConfig,
    knobs: Knobs,
    commands: Any,
    events: Any,
    heartbeat: Any,
    log_level: int,
    reports: bool,
) -> None:
    gc.disable()  # until the model is loaded, see ``freeze_objects``
    leave_signals_to_parent()
    logging.basicConfig(level=log_level)
    threading.Thread(target=_beat_until_parent_ends, args=(heartbeat,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):  # the client is gone
        inbox = QueueInbox(commands, pickle.loads)
        run_worker(model, config, knobs, inbox, events.send, loaded=freeze_objects, reports=reports)


def _beat_until_parent_ends(heartbeat: Any) -> None:
    """Increment the counter that the parent watches; exit when the parent has ended, even if it was killed."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        heartbeat.value += 1
        parent.join(HEARTBEAT_S)
    os._exit(1)


def start_transport(
    model: Any, config: EngineConfig, knobs: Knobs, clock: Clock = SYSTEM_CLOCK, reports: bool = False
) -> Transport:
    """Start a worker in a thread or process, as ``config.worker`` says; a process uses the system's clock.

    Args:
        reports: whether the worker sends ``Progress`` events while it starts.
    """
    if config.worker == "thread":
        return ThreadTransport(model, config, knobs, clock, reports)
    return ProcessTransport(model, config, knobs, reports)
