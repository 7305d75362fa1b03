"""Exports made in a process of their own.

Reading a recording takes about 35 times its size in memory, and a second of Python for each MB. In the page's process that
memory would partly stay, and every stream and poll would wait for the interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import roseplay
from roseplay.play.recording.exports import export

_ONE_AT_A_TIME = threading.Lock()
_LOOK_FOR_PARENT_S = 0.5
_PATIENCE_S = 120.0  # for the exports before it
_S_PER_MB = 15.0  # for its own; it takes one on an idle machine


class ExportError(RuntimeError):
    """An export could not be made; one line."""


def export_apart(kind: str, lines: Sequence[bytes]) -> bytes:
    """The same bytes as ``exports.export``. One export is made at a time; others wait.

    Raises:
        ExportError: it could not be made.
    """
    if kind == "recording":
        return export(kind, lines)
    where = [str(Path(roseplay.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, where))}
    command = [sys.executable, "-m", __name__, kind]
    if not _ONE_AT_A_TIME.acquire(timeout=_PATIENCE_S):
        raise ExportError("other exports are still being made: try again later")
    recording = b"".join(lines)
    limit_s = _PATIENCE_S + _S_PER_MB * len(recording) / 1e6
    try:
        child = subprocess.run(command, input=recording, capture_output=True, env=environment, timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise ExportError(f"the {kind} was not made within {limit_s:.0f} s") from None
    finally:
        _ONE_AT_A_TIME.release()
    if child.returncode != 0:
        said = child.stderr.decode(errors="replace").strip().splitlines()
        raise ExportError(f"the {kind} could not be made: {said[-1] if said else f'exit code {child.returncode}'}")
    return child.stdout


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_FOR_PARENT_S)
    os._exit(1)


def main() -> None:
    """In the child: the recording comes in, the export goes out."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    lines = sys.stdin.buffer.read().splitlines(keepends=True)
    sys.stdout.buffer.write(export(sys.argv[1], lines))


if __name__ == "__main__":
    main()
