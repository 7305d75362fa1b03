"""How commands reach a worker and events come back: queues to a thread, or a queue and a pipe to a process."""

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
from roseplay.engine.messages import Command, Event, Shutdown
from roseplay.engine.worker import run_worker

HEARTBEAT_S = 0.25
TERMINATE_S = 5.0  # that a worker process goes on after SIGTERM, for its parent to end it


class WorkerGoneError(RuntimeError):
    """The worker ended unexpectedly."""


class Transport(Protocol):
    """One running worker."""

    replaceable: bool

    @property
    def pid(self) -> int | None:
        """The worker's process, None when it is this one."""

    def send(self, command: Command) -> None:
        """Hand over a command; never blocks."""

    def receive(self, timeout: float) -> Event | None:
        """The next event, None after ``timeout`` seconds; raises ``WorkerGoneError`` when none will come."""

    def stopped_for_s(self) -> float:
        """Seconds since the worker's process was last seen to run; 0 for a thread, which runs with this process."""

    def stop(self, timeout: float) -> None:
        """Tell the worker to end, and see that it does."""

    def kill(self) -> None:
        """End the worker without asking, where that is possible."""


class QueueInbox:
    """A worker's inbox over any queue with ``get``.

    Args:
        read: makes a command of what is in the queue.
    """

    def __init__(self, commands: Any, read: Callable[[Any], Command] = lambda command: command) -> None:
        self._commands = commands
        self._read = read

    def take(self, timeout: float | None) -> list[Command]:
        taken: list[Command] = []
        try:
            if timeout is None or timeout > 0:
                taken.append(self._read(self._commands.get(True, timeout)))
            while True:
                taken.append(self._read(self._commands.get(False)))
        except queue.Empty:
            return taken


class ThreadTransport:
    """The worker is a thread of this process."""

    replaceable = False
    pid = None

    def __init__(self, model: Any, config: EngineConfig, knobs: Knobs, clock: Clock = SYSTEM_CLOCK) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=run_worker,
            args=(model, config, knobs, QueueInbox(self._commands), self._events.put),
            kwargs={"clock": clock},
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
        """A thread cannot be killed; it is left behind and ends when it wakes."""
        self._commands.put(Shutdown())


class ProcessTransport:
    """The worker is a spawned process; its death is noticed at once by the end of its pipe."""

    replaceable = True

    def __init__(self, model: Any, config: EngineConfig, knobs: Knobs) -> None:
        context = multiprocessing.get_context("spawn")
        with _held_back("SIGHUP"):  # it starts multiprocessing's resource tracker, which is needed until the end
            self._commands = context.Queue()
        self._events, child_end = context.Pipe(duplex=False)
        self._heartbeat = Heartbeat(context.RawValue(ctypes.c_uint64, 0))
        self._process = context.Process(
            target=_process_main,
            args=(
                *(model, config, knobs, self._commands, child_end),
                *(self._heartbeat.count, logging.getLogger().level),
            ),
            name="roseplay-worker",
            daemon=True,
        )
        with _held_back("SIGINT", "SIGHUP"):
            self._process.start()
        child_end.close()  # else the pipe would outlive the child

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def send(self, command: Command) -> None:
        data = pickle.dumps(command)  # here, where it raises: the queue's thread would lose what it cannot pickle
        with contextlib.suppress(ValueError):  # closed meanwhile: all streams have been ended, nobody waits for this
            self._commands.put(data)

    def receive(self, timeout: float) -> Event | None:
        try:
            if not self._events.poll(timeout):
                return None
            event: Event = self._events.recv()
            return event
        except (EOFError, OSError):
            self._process.join(1.0)
            raise WorkerGoneError(f"the engine's process ended (exit code {self._process.exitcode})") from None
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


class Heartbeat:
    """Tells from a counter in shared memory whether the process that counts still runs.

    Args:
        count: counted up by the other process every ``HEARTBEAT_S`` seconds.
        clock: seconds.
    """

    def __init__(self, count: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = count
        self._clock = clock
        self._seen = count.value
        self._seen_at = self._looked_at = clock()

    def missing_for_s(self) -> float:
        """Seconds for which the counter has stood still while this process looked at it."""
        now, seen = self._clock(), self.count.value
        looked_at, self._looked_at = self._looked_at, now
        if now - looked_at > 4 * HEARTBEAT_S:  # this process itself did not run, or nobody asked
            self._seen_at = now
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        return now - self._seen_at


@contextlib.contextmanager
def _held_back(*names: str) -> Iterator[None]:
    """A process started within begins with these signals blocked: a terminal sends them to it too, which must not end it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {getattr(signal, name) for name in names})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _process_main(
    model: Any, config: EngineConfig, knobs: Knobs, commands: Any, events: Any, heartbeat: Any, log_level: int
) -> None:
    _leave_signals_to_parent()
    logging.basicConfig(level=log_level)
    threading.Thread(target=_beat_until_parent_ends, args=(heartbeat,), daemon=True).start()
    with contextlib.suppress(BrokenPipeError):  # the client is gone
        run_worker(model, config, knobs, QueueInbox(commands, pickle.loads), events.send, loaded=_freeze_objects)


def _leave_signals_to_parent() -> None:
    """Survive what a terminal or a service manager sends to the parent's whole group: the parent ends its worker itself.

    SIGTERM is put off, not ignored: at the end of a program multiprocessing sends it to whatever still runs, and waits.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def end_later(number: int, frame: Any) -> None:
        timer = threading.Timer(TERMINATE_S, os._exit, (128 + number,))
        timer.daemon = True
        timer.start()

    signal.signal(signal.SIGTERM, end_later)


def _freeze_objects() -> None:
    """The model's objects need no look from the garbage collector in the middle of a step.

    Only in a process of the worker's own: what is frozen is never collected, and a thread's model has to be.
    """
    gc.collect()
    gc.freeze()


def _beat_until_parent_ends(heartbeat: Any) -> None:
    """Count up, so that the parent sees that this process runs; exit when the parent has ended, even if it was killed."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        heartbeat.value += 1
        parent.join(HEARTBEAT_S)
    os._exit(1)


def start_transport(model: Any, config: EngineConfig, knobs: Knobs, clock: Clock = SYSTEM_CLOCK) -> Transport:
    """Start a worker where ``config.worker`` says; a process has the system's clock."""
    if config.worker == "thread":
        return ThreadTransport(model, config, knobs, clock)
    return ProcessTransport(model, config, knobs)
