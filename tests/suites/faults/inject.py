"""Ways to break one part of the engine at one moment, in this process or in a worker process.

A ``Fault`` wraps a function or a class of the product. Nothing happens until it is armed; then it acts on the calls
it is meant for, and counts them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Act = Callable[..., Any]


class PanicException(BaseException):
    """Looks like a panic in a Rust extension: pyo3's exception of this name derives from ``BaseException``."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What goes wrong, where, and when."""

    target: str  # ``module:name`` or ``module:Class.method``
    act: Act  # called instead of the target, as ``act(call, *args)``, where ``call()`` does what the target does
    at: int = 1  # the first call on which it acts, counted from 1 once the fault is armed
    times: int = 1  # the number of calls on which it acts
    # Acts only on calls for whose arguments this is true; other calls are not counted.
    only: Callable[..., bool] = lambda *args: True


class Armed:
    """A fault that has been put in place.

    Attributes:
        fired: how often it has acted.
    """

    def __init__(self, fault: Fault, is_armed: Callable[[], bool], on_fire: Callable[[], object]) -> None:
        self.fault = fault
        self.fired = 0
        self._is_armed = is_armed
        self._on_fire = on_fire
        self._calls = 0
        self._lock = threading.Lock()

    def __call__(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def call() -> Any:
            return original(*args, **kwargs)

        if not self._is_armed() or not self.fault.only(*args):
            return call()
        with self._lock:
            self._calls += 1
            acts = self.fault.at <= self._calls < self.fault.at + self.fault.times
            if acts:
                self.fired += 1
                if self.fired == 1:
                    self._on_fire()
        return self.fault.act(call, *args) if acts else call()


def _find(target: str) -> tuple[Any, str]:
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def _wrap(original: Any, armed: Armed) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return armed(original, *args, **kwargs)

    return wrapper if isinstance(original, type) else functools.wraps(original)(wrapper)


@contextlib.contextmanager
def injected(*faults: Fault, on_fire: Callable[[], object] = lambda: None) -> Iterator[Injected]:
    """Put faults in place in this process. ``arm()`` arms them, and they are removed at the end.

    Args:
        on_fire: called when one of them first acts.
    """
    switch = threading.Event()
    armed, originals = [], []
    for fault in faults:
        owner, name = _find(fault.target)
        originals.append((owner, name, getattr(owner, name)))
        armed.append(Armed(fault, switch.is_set, on_fire))
        setattr(owner, name, _wrap(getattr(owner, name), armed[-1]))
    try:
        yield Injected(armed, switch)
    finally:
        for owner, name, original in reversed(originals):
            setattr(owner, name, original)


@dataclasses.dataclass
class Injected:
    """The faults of one row."""

    faults: list[Armed]
    switch: threading.Event

    def arm(self) -> None:
        self.switch.set()

    @property
    def fired(self) -> bool:
        """Whether all of them have acted."""
        return all(fault.fired for fault in self.faults)


class FaultyModel(str):
    """A model name that installs the faults of ``WORKER_ROWS`` in a worker process when it is unpickled there.

    The faults of a row act while the file ``flags / row`` exists, and the first to act removes it. A worker that
    replaces a broken one therefore has the same faults, disarmed.
    """

    flags: str

    def __new__(cls, model: str, flags: Path) -> FaultyModel:
        self = super().__new__(cls, model)
        self.flags = str(flags)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _break_this_process, (str(self), self.flags)


def _break_this_process(model: str, flags: str) -> str:
    from tests.suites.faults.table import WORKER_ROWS

    for name, row in WORKER_ROWS.items():
        flag = Path(flags) / name
        for fault in row.faults:
            owner, attribute = _find(fault.target)
            armed = Armed(fault, flag.exists, functools.partial(flag.unlink, missing_ok=True))
            setattr(owner, attribute, _wrap(getattr(owner, attribute), armed))
    return model
