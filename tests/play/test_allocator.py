"""Memory that the page's process frees goes back to the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

# Buffers like those that a server's threads hold briefly, each followed by a lasting object that fits no heap hole.
SCRIPT = """
import sys
from roseplay.play.allocator import return_freed_memory

def held_mb():
    rollup = open("/proc/self/smaps_rollup").read()
    return next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss_Anon")) / 1000

if sys.argv[1] == "returned":
    assert return_freed_memory()
del (large := [bytes(24_000_000)])[:]
before = held_mb()
LASTING, buffers, lasting = 64_000, [], []
for _ in range(100):
    buffers.append(b"x" * 1_000_000)
    lasting.append(b"y" * LASTING)
assert held_mb() > before + 90
buffers.clear()
print(held_mb() - before - len(lasting) * LASTING / 1e6)
"""


def left_mb(how: str) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", SCRIPT, how]
    child = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return float(child.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_freed_buffers_are_returned() -> None:
    assert left_mb("as usual") > 50  # otherwise there would be nothing to test
    assert left_mb("returned") < 5
