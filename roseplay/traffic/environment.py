"""The environment of a measurement."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import roseplay

_OVERLOADED = 0.5  # of the processors' time; a browser that shows the page stays below


def environment(*, threads: int, device: str) -> dict[str, float | bool | str | None]:
    """Returns versions, processor and cores; nothing that identifies the machine or its user.

    Args:
        threads: torch's intra-op threads, as the engine reports them.
        device: the engine's device; of what computes on a ``server``, nothing is known here.
    """
    if device == "server":
        return {"roseplay": roseplay.__version__}
    return {
        "roseplay": roseplay.__version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": num_cpus(),
        "threads": threads,
        "device": device,
        "device_name": _device_name(device),
    }


class Machine:
    """How busy this machine is."""

    def others_s(self) -> float | None:
        """Returns the CPU time that was not this program's so far, in seconds; ``None`` where the system does not tell.

        Counted are the processors that this process may use; its children belong to this program.
        """
        try:
            cpus = {f"cpu{number}" for number in os.sched_getaffinity(0)}
            rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
            busy = sum(sum(map(int, row[1:4] + row[6:9])) for row in rows if row[0] in cpus)  # all but idle and iowait
            own = sum(_ticks(pid) for pid in _family(os.getpid()))
        except (AttributeError, OSError, ValueError):
            return None  # not Linux
        return (busy - own) / os.sysconf("SC_CLK_TCK")


def overload(others_s: Callable[[], float | None]) -> Callable[[], bool]:
    """Returns a function that returns whether other programs have used most of the CPU time since this call.

    Args:
        others_s: as of a ``Machine``; where it does not tell, they have not.
    """
    began, before = time.monotonic(), others_s()

    def overloaded() -> bool:
        now, most = others_s(), _OVERLOADED * num_cpus() * (time.monotonic() - began)
        return before is not None and now is not None and now - before > most

    return overloaded


def _family(pid: int) -> Iterator[int]:
    """Yields a process and its descendants."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended
            for child in thread.read_text().split():
                yield from _family(int(child))


def _ticks(pid: int) -> int:
    """Returns the CPU time of a process and its ended children, 0 if it has ended itself."""
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    except OSError:
        return 0


def num_cpus() -> int:
    """Returns the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def version(package: str) -> str | None:
    """Returns the installed version of a package; None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine()


def _device_name(device: str) -> str | None:
    if not device.startswith("cuda"):
        return None
    import torch

    return torch.cuda.get_device_name(device)
