"""The page's server as users start it: ``python app.py`` in its own process."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.processes import Usage, alive, descendants, usage

REPOSITORY = Path(__file__).resolve().parents[3]
STARTS_WITHIN_S = 180.0
ENDS_WITHIN_S = 20.0
_PR_SET_PDEATHSIG = 1


class Server:
    """``app.py`` on a free port of the loopback address, from construction to ``close``.

    Args:
        folder: for its log and its temporary files.

    Raises:
        RuntimeError: it did not start; includes the end of its log.
    """

    def __init__(self, folder: Path, flags: tuple[str, ...] = ()) -> None:
        self.log = folder / "server.log"
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(self.temporary)}
        command = [
            sys.executable,
            str(REPOSITORY / "app.py"),
            "--model",
            "tiny-chat",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            *flags,
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
                preexec_fn=_end_with_parent,
            )  # fmt: skip
        self._seen: set[int] = {self.process.pid}
        try:
            self.port = self._wait_until_live()
        except BaseException:
            self.close()
            raise
        children = descendants(self.process.pid)
        self._seen.update(children)
        self.worker = next((pid for pid, command in children.items() if "spawn_main" in command), None)

    def _wait_until_live(self) -> int:
        deadline = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log.read_text(errors="replace").splitlines():
                if " is live at " in line:
                    return int(line.split(" is live at ")[1].split(" ")[0].rsplit(":", 1)[1])
            time.sleep(0.1)
        raise RuntimeError(f"the server did not start: {self.log.read_text(errors='replace')[-2000:].strip()}")

    def usage(self) -> dict[str, list[Usage]]:
        """Returns its processes' resources by role: ``server``, ``worker``, ``tracker``, ``other`` (lab, exports)."""
        family = descendants(self.process.pid)
        self._seen.update(family)
        found: dict[str, list[Usage]] = {}
        for pid, command in family.items():
            held = usage(pid)
            if held is not None:
                found.setdefault(self._role(pid, command), []).append(held)
        return found

    def _role(self, pid: int, command: str) -> str:
        if pid == self.process.pid:
            return "server"
        if pid == self.worker:
            return "worker"
        return "tracker" if "resource_tracker" in command else "other"

    def complaints(self) -> list[str]:
        """Returns the lines of its log, except those about the start."""
        lines = self.log.read_text(errors="replace").splitlines()
        started = (" is live at ", " is loading.", "the page is at ")
        return [line for line in lines if line.strip() and not any(words in line for words in started)]

    def close(self) -> list[str]:
        """End it with SIGTERM, as a user does, and kill what is left. Returns what went wrong, if anything."""
        self._seen.update(descendants(self.process.pid))
        wrong = []
        if self.process.poll() is not None:
            wrong.append(f"the server ended by itself with exit code {self.process.returncode}")
        self.process.terminate()
        try:
            code = self.process.wait(ENDS_WITHIN_S)
            if code != 0 and not wrong:
                wrong.append(f"the server's exit code after SIGTERM was {code}")
        except subprocess.TimeoutExpired:
            wrong.append(f"the server had not ended {ENDS_WITHIN_S:g} s after SIGTERM")
            self.process.kill()
            self.process.wait()
        deadline = time.monotonic() + 5.0
        while (left := alive(self._seen - {self.process.pid})) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            wrong.append(f"process {pid} outlived the server")
            os.kill(pid, signal.SIGKILL)
        return wrong


def _end_with_parent() -> None:
    """Runs in the child: the system ends it when the process that started it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
