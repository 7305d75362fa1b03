"""How commands reach a worker and events come back: queues to a thread, or a queue and a pipe to a process."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from roseplay.config import EngineConfig, Knobs
from roseplay.engine.messages import Command, Event, Shutdown
from roseplay.engine.worker import run_worker


class WorkerGoneError(RuntimeError):
    """The worker ended without being told to."""


class Transport(Protocol):
    """One running worker."""

    replaceable: bool

    def send(self, command: Command) -> None:
        """Hand over a command; never blocks."""

    def receive(self, timeout: float) -> Event | None:
        """The next event, None after ``timeout`` seconds; raises ``WorkerGoneError`` when none will come."""

    def stop(self, timeout: float) -> None:
        """Tell the worker to end, and see that it does."""

    def kill(self) -> None:
        """End the worker without asking, where that is possible."""


class QueueInbox:
    """A worker's inbox over any queue with ``get``."""

    def __init__(self, commands: Any) -> None:
        self._commands = commands

    def take(self, timeout: float | None) -> list[Command]:
        taken: list[Command] = []
        try:
            if timeout is None or timeout > 0:
                taken.append(self._commands.get(True, timeout))
            while True:
                taken.append(self._commands.get(False))
        except queue.Empty:
            return taken


class ThreadTransport:
    """The worker is a thread of this process."""

    replaceable = False

    def __init__(self, model: Any, config: EngineConfig, knobs: Knobs) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=run_worker,
            args=(model, config, knobs, QueueInbox(self._commands), self._events.put),
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

    def stop(self, timeout: float) -> None:
        self._commands.put(Shutdown())
        self._thread.join(timeout)

    def kill(self) -> None:
        """A thread cannot be killed; it is left behind and told to end when it wakes."""
        self._commands.put(Shutdown())


class ProcessTransport:
    """The worker is a spawned process; its death is noticed at once by the end of its pipe."""

    replaceable = True

    def __init__(self, model: Any, config: EngineConfig, knobs: Knobs) -> None:
        context = multiprocessing.get_context("spawn")
        self._commands = context.Queue()
        self._events, child_end = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_process_main,
            args=(model, config, knobs, self._commands, child_end, logging.getLogger().level),
            name="roseplay-worker",
            daemon=True,
        )
        self._process.start()
        child_end.close()  # else the pipe would outlive the child

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def send(self, command: Command) -> None:
        self._commands.put(command)

    def receive(self, timeout: float) -> Event | None:
        try:
            if not self._events.poll(timeout):
                return None
            event: Event = self._events.recv()
            return event
        except (EOFError, OSError):
            self._process.join(1.0)
            raise WorkerGoneError(f"the engine's process ended (exit code {self._process.exitcode})") from None

    def stop(self, timeout: float) -> None:
        self._commands.put(Shutdown())
        self._process.join(timeout)
        self.kill()

    def kill(self) -> None:
        if self._process.is_alive():
            self._process.kill()
            self._process.join(5.0)
        self._commands.cancel_join_thread()
        self._commands.close()


def _process_main(model: Any, config: EngineConfig, knobs: Knobs, commands: Any, events: Any, log_level: int) -> None:
    logging.basicConfig(level=log_level)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # the client is gone: there is nobody left to tell
        run_worker(model, config, knobs, QueueInbox(commands), events.send)


def _end_with_parent() -> None:
    """A client that was killed tells nobody; its worker must not stay behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)


def start_transport(model: Any, config: EngineConfig, knobs: Knobs) -> Transport:
    """Start a worker where ``config.worker`` says."""
    kinds: dict[str, Callable[[Any, EngineConfig, Knobs], Transport]] = {
        "thread": ThreadTransport,
        "process": ProcessTransport,
    }
    return kinds[config.worker](model, config, knobs)
