"""How much memory of this machine is free, within the container's limit."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

USABLE = 0.98  # share of the free memory: other programs also allocate and free some
# A container's memory in cgroup versions 2 and 1: folder, bytes used, limit, and the file pages that can be reclaimed.
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.current", "memory.max", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"),
)


def free_memory(cgroups: Iterable[tuple[str | Path, str, str, str]] = _CGROUPS) -> int:
    """Returns the bytes that are available within the container's limit; reclaimable file pages count as available."""
    limits = [_meminfo_available()]
    for folder, used, limit, dropped in cgroups:
        try:
            room = int(Path(folder, limit).read_text()) - int(Path(folder, used).read_text())
            stat = dict(line.split() for line in Path(folder, "memory.stat").read_text().splitlines())
            limits.append(room + int(stat.get(dropped, 0)))
        except (OSError, ValueError):  # no such cgroup, or "max"
            continue
    return max(0, min(limits))


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 4 * 2**30  # not Linux: a cautious guess
