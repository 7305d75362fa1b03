"""A server in its own process, for benchmarks to measure."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Self

import httpx

from roseplay.extras.bench.runs import BenchmarkError

ROSEPLAY = (sys.executable, "-m", "roseplay")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_END_WITHIN_S, _ANSWERS_WITHIN_S = 30.0, 120.0
_LOOK_S = 0.1


class ServerProcess:
    """A program that serves on a free port of this machine until the context ends.

    Args:
        program: its command line up to the flags, such as ``[*ROSEPLAY, "serve"]``.
        flags: the rest, without ``--port``.

    Attributes:
        http: sends it requests.

    Raises:
        BenchmarkError: the server did not start.
    """

    def __init__(self, program: list[str], flags: list[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(
            base_url=self.address, timeout=_ANSWERS_WITHIN_S, trust_env=False,  # no proxy
            limits=httpx.Limits(max_keepalive_connections=0),
        )  # fmt: skip
        arguments = [*program, "--port", str(self.port), *flags]
        with tempfile.TemporaryFile("w+") as output:
            self._process = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT)
            self.pid = self._process.pid
            while not self._is_live():
                if self._process.poll() is not None:
                    output.seek(0)
                    reason = output.read().strip().rpartition("\n")[2]  # after progress
                    raise BenchmarkError(f"the server did not start: {reason}")
                time.sleep(_LOOK_S)

    def _is_live(self) -> bool:
        try:
            return self.http.get("/health").is_success
        except httpx.TransportError:  # it does not listen yet
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
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
        pids = [self.pid]
        for pid in pids:  # grows during the loop
            pids += children.get(pid, [])
        return {pid: resident.get(pid, 0) for pid in pids}

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
