"""A roseplay server in its own process, for benchmarks to measure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Self

import httpx

from roseplay.bench.runs import BenchmarkError

_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_END_WITHIN_S = 30.0
_ANSWERS_WITHIN_S = 120.0


class ServerProcess:
    """A roseplay command that serves on a free port of this machine until the context ends.

    Args:
        command: ``play`` or ``serve``.
        flags: of its command line, without ``--port``.

    Attributes:
        said: the line in which it prints its address.
        http: sends it requests.

    Raises:
        BenchmarkError: the server did not start.
    """

    def __init__(self, command: str, flags: list[str]) -> None:
        arguments = [sys.executable, "-m", "roseplay", command, "--port", "0", *flags]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stderr is not None
        self.said = self._process.stdout.readline()  # the server exits if it cannot start
        if " is live at " not in self.said:
            why = self.said.strip() or self._process.stderr.read().strip().rpartition("\n")[2]  # after progress
            raise BenchmarkError(f"the server did not start: {why}")
        self.pid = self._process.pid
        self.address = self.said.split(" is live at ")[1].split(" ")[0]
        self.port = int(self.address.split("/")[2].rsplit(":", 1)[1])
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self.port}", timeout=_ANSWERS_WITHIN_S, trust_env=False,  # no proxy
            limits=httpx.Limits(max_keepalive_connections=0),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        self.http.close()
        self._process.terminate()
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def family(self) -> dict[int, int]:
        """Returns the memory in kB of the server's process and all its descendants, by pid."""
        listed = subprocess.run(["ps", "-eo", "ppid=,pid=,rss="], capture_output=True, text=True).stdout
        children: dict[int, list[int]] = {}
        resident: dict[int, int] = {}
        for parent, child, size in (map(int, line.split()) for line in listed.splitlines()):
            children.setdefault(parent, []).append(child)
            resident[child] = size
        found = [self.pid]
        for pid in found:  # grows during the loop
            found += children.get(pid, [])
        return {pid: resident.get(pid, 0) for pid in found}

    def cpu_s(self) -> dict[int, float]:
        """Returns the processor seconds so far of the server's process and all its descendants, by pid."""
        return {pid: cpu_s(Path(f"/proc/{pid}/stat")) for pid in self.family()}


def cpu_s(stat: Path) -> float:
    """Returns the processor seconds in a ``stat`` file of /proc; 0 if its process has ended."""
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
