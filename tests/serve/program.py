"""``roseplay serve`` in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from roseplay.config import SIMULATED_GPUS

ROOT = Path(__file__).resolve().parents[2]
# Where a GPU can be simulated, the process starts without PyTorch, which takes longer to import than everything else.
QUICK = ("--run-as", "h100") if SIMULATED_GPUS else ("--num-blocks", "449")
MODEL = "qwen3-0.6b" if SIMULATED_GPUS else "tiny-chat"
SLOWED = ("--model", MODEL, *QUICK, "--worker", "thread", "--slow-motion", "3")


@contextmanager
def served(*flags: str, model: tuple[str, ...] = SLOWED) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yields the process, whose errors can be read, and its address; by default in slow motion and with one process."""
    command = [sys.executable, "-m", "roseplay", "serve", *model, "--port", "0", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://[^/]+", process.stdout.readline())
            assert found, errors_of(process)
            yield process, found.group()
        finally:
            process.kill()


def errors_of(process: subprocess.Popen[str]) -> str:
    """What a process that has ended wrote to standard error."""
    assert process.stderr is not None
    return process.stderr.read()
