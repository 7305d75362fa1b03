"""Exports made in a child process.

Reading a recording takes about 35 times its size in memory and a second of Python for each MB. In the page's process,
some of that memory would never be returned, and every stream and poll would wait for the interpreter.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import roseplay
from roseplay.recording.exports import export

PIECE_BYTES = 1 << 16
_ONE_AT_A_TIME = threading.Lock()
_LOOK_FOR_PARENT_S = 0.5
_QUEUE_S = 120.0  # to wait for earlier exports
_LIMIT_S = 900.0  # for one export: the largest recording takes a minute on an idle machine


class ExportError(RuntimeError):
    """An export failed; the message is one line."""


def export_in_process(kind: str, lines: Iterable[bytes]) -> BinaryIO:
    """Returns an export as a temporary file that is deleted when closed. Exports are made one at a time.

    Raises:
        ExportError: the export failed, or had to wait too long for others.
    """
    if not _ONE_AT_A_TIME.acquire(timeout=_QUEUE_S):
        raise ExportError("other exports are still being made: try again later")
    try:
        return _export(kind, lines)
    finally:
        _ONE_AT_A_TIME.release()


def _export(kind: str, lines: Iterable[bytes]) -> BinaryIO:
    where = [str(Path(roseplay.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, where))}
    command = [sys.executable, "-m", __name__, kind]
    try:
        with contextlib.ExitStack() as files, tempfile.TemporaryFile(prefix="roseplay-") as recording:
            output = files.enter_context(tempfile.TemporaryFile(prefix="roseplay-"))
            recording.writelines(lines)
            recording.seek(0)
            child = subprocess.run(
                command, stdin=recording, stdout=output, stderr=subprocess.PIPE, env=environment, timeout=_LIMIT_S
            )
            if child.returncode != 0:
                last = child.stderr.decode(errors="replace").strip().splitlines()[-1:]
                raise ExportError(
                    f"the {kind} could not be made: {last[0] if last else f'exit code {child.returncode}'}"
                )
            output.seek(0)
            files.pop_all()  # the caller closes it
            return output
    except OSError as error:
        raise ExportError(f"the {kind} could not be made: {error.strerror or error}") from None
    except subprocess.TimeoutExpired:
        raise ExportError(f"the {kind} could not be made within {_LIMIT_S:g} s") from None


def pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the lines joined into pieces of about ``PIECE_BYTES``."""
    gathered, size = [], 0
    for line in lines:
        gathered.append(line)
        size += len(line)
        if size >= PIECE_BYTES:
            yield b"".join(gathered)
            gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_FOR_PARENT_S)
    os._exit(1)


def main() -> None:
    """The child process: reads a recording from standard input and writes the export to standard output."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    sys.stdout.buffer.write(export(sys.argv[1], sys.stdin.buffer.read().splitlines(keepends=True)))


if __name__ == "__main__":
    main()
