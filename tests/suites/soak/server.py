"""The page's server as users start it: ``python app.py`` in its own process."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.processes import Usage, descendants, usage
from tests.suites.lifecycle.processes import Program
from tests.waiting import wait_until

STARTS_WITHIN_S = 180.0
ENDS_WITHIN_S = 20.0


class Server:
    """``app.py`` on a free port of the loopback address, from construction to ``close``.

    Args:
        folder: for its temporary files.

    Raises:
        RuntimeError: it did not start.
    """

    def __init__(self, folder: Path) -> None:
        self.temporary = folder
        flags = ("--model", "tiny-chat", "--host", "127.0.0.1", "--port", "0")
        self._program = Program("app.py", *flags, environment={"TMPDIR": str(folder)})
        self.process = self._program.process
        try:
            found = re.search(r" is live at \S+:(\d+)", self._program.line(STARTS_WITHIN_S))
            assert found is not None, self._program.errors
        except AssertionError as error:
            self._program.kill()
            raise RuntimeError(f"the server did not start: {error}") from None
        self.port = int(found[1])
        (self.worker,) = (pid for pid, line in descendants(self.process.pid).items() if "spawn_main" in line)

    def usage(self) -> dict[str, list[Usage]]:
        """Returns its processes' resources by role: ``server``, ``worker``, ``other`` (lab, exports)."""
        found: dict[str, list[Usage]] = {}
        roles = {self.process.pid: "server", self.worker: "worker"}
        for pid, command in descendants(self.process.pid).items():
            held = usage(pid)
            if held is not None and "resource_tracker" not in command:
                found.setdefault(roles.get(pid, "other"), []).append(held)
        return found

    def errors(self) -> list[str]:
        """Returns the lines of its log that tell of an error."""
        return [line for line in self._program.errors.splitlines() if re.search("Traceback|Error|ERROR", line)]

    def close(self) -> list[str]:
        """End it with SIGTERM, as a user does, and kill what is left. Returns what went wrong, if anything."""
        wrong = []
        if self.process.poll() is not None:
            wrong.append(f"the server ended by itself with exit code {self.process.returncode}")
        self.process.terminate()
        try:
            code = self._program.ended(ENDS_WITHIN_S)
            if code != 0 and not wrong:
                wrong.append(f"the server's exit code after SIGTERM was {code}")
            wait_until(lambda: not self._program.processes, "the end of all its processes", 5)
        except subprocess.TimeoutExpired:
            wrong.append(f"the server had not ended {ENDS_WITHIN_S:g} s after SIGTERM")
        except AssertionError:
            wrong.append(f"the processes {self._program.processes} outlived the server")
        self._program.kill()
        return wrong
