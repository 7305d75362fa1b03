"""The environment of a measurement."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import roseplay

_OVERLOADED = 1.5  # times the cores; an engine and a browser stay below


def environment(*, threads: int, device: str) -> dict[str, Any]:
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


def overloaded() -> bool:
    """Whether clearly more threads wanted to run than there are cores, on average over the last minute."""
    return hasattr(os, "getloadavg") and os.getloadavg()[0] > _OVERLOADED * num_cpus()


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
