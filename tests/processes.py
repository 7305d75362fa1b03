"""Processes, their children and their resources: memory, file descriptors and threads, read from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# Memory that belongs to the process: what it wrote, its shared memory, and either of them swapped out. Pages of
# libraries are left out, because how many of them count depends on which other processes use the same library.
_OWN = ("Pss_Anon", "Pss_Shmem", "SwapPss")


@dataclass(frozen=True, slots=True)
class Usage:
    """What one process holds at one moment; memory in MB (10**6 bytes)."""

    memory_mb: float
    fds: int
    threads: int


def usage(pid: int) -> Usage | None:
    """Returns what the process holds, or None when it has ended."""
    try:
        rollup = _PROC.joinpath(str(pid), "smaps_rollup").read_text()
        fds = len(os.listdir(_PROC / str(pid) / "fd"))
        threads = len(os.listdir(_PROC / str(pid) / "task"))
    except OSError:
        return None
    sizes = {line.split(":")[0]: line.split()[1] for line in rollup.splitlines()[1:]}
    own = sum(int(sizes.get(name, 0)) for name in _OWN) * 1024 / 1e6
    return Usage(own, fds, threads) if sizes else None


def descendants(root: int) -> dict[int, str]:
    """Returns the command line of ``root`` and of every process below it, by process id."""
    parents: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    family, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family |= more
        grown = bool(more)
    return {pid: line for pid in family if (line := _command(pid)) is not None}


def alive(pids: Iterable[int]) -> list[int]:
    """Returns those of the processes that still run; a zombie does not."""
    return [pid for pid in pids if _command(pid)]


def folder_size(folder: Path) -> tuple[int, float]:
    """Returns how many files are below a folder, and their size in MB."""
    count, size = 0, 0
    for where, _, files in os.walk(folder):
        for name in files:
            try:
                size += os.stat(os.path.join(where, name)).st_size
            except OSError:
                continue
            count += 1
    return count, size / 1e6


def _command(pid: int) -> str | None:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
