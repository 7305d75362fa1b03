"""How ``make test`` gets the browser for its browser tests, with commands that stand in for the real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
BROWSER = "#!/bin/sh\necho Chromium 1.0\n"
STUB = "#!/bin/sh\necho 'requires the chromium snap to be installed' >&2\nexit 1\n"


class Machine:
    """A machine without a browser, whose ``PATH``, Playwright and user belong to a test.

    ``TEST_BROWSER_OF`` is the command that provides a browser, ``apt-get`` or ``playwright``; the others fail.
    """

    def __init__(self, root: Path) -> None:
        self.bin, self._log, self._download = root / "bin", root / "log", root / "download" / "chrome"
        self._packages = root / "packages"
        (self._packages / "playwright").mkdir(parents=True)
        self.bin.mkdir()
        (self._packages / "sitecustomize.py").write_text(
            "import os\nif 'TEST_UID' in os.environ:\n    os.geteuid = lambda: int(os.environ['TEST_UID'])\n"
        )
        (self._packages / "playwright" / "__init__.py").touch()
        (self._packages / "playwright" / "__main__.py").write_text(PLAYWRIGHT_COMMAND)
        (self._packages / "playwright" / "sync_api.py").write_text(PLAYWRIGHT_API)
        self.env = {
            **{name: value for name, value in os.environ.items() if name not in ("ROSEPLAY_CHROMIUM", "CI")},
            "PATH": str(self.bin),
            "PYTHONPATH": str(self._packages),
            "TEST_LOG": str(self._log),
            "TEST_DOWNLOAD": str(self._download),
            "TEST_BROWSER_OF": "",
            "TEST_LACKS": "nothing",
            "TEST_UID": "1000",
        }

    def command(self, name: str, script: str) -> Path:
        path = self.bin / name
        path.write_text(script)
        path.chmod(0o755)
        return path

    def can_install_packages(self, *, as_root: bool = True) -> None:
        """Give it apt-get."""
        shell, chmod = shutil.which("sh"), shutil.which("chmod")
        self.env["TEST_UID"] = "0" if as_root else "1000"
        self.command("apt-get", APT_GET.format(shell=shell, chmod=chmod, browser=self.bin / "chromium"))

    def get(self) -> str:
        """Run ``python -m tests.chromium``; returns what it printed."""
        command = [sys.executable, "-m", "tests.chromium"]
        done = subprocess.run(
            command, cwd=REPOSITORY, env=self.env, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    @property
    def calls(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


APT_GET = """#!{shell}
echo "apt-get $*" >> "$TEST_LOG"
if [ "$TEST_BROWSER_OF" != apt-get ]; then echo "no network" >&2; exit 100; fi
if [ "$1" = install ]; then
  case "$*" in *" $TEST_LACKS") exit 100;; esac
  printf '#!{shell}\\necho Chromium 1.0\\n' > {browser}
  {chmod} 755 {browser}
fi
"""
PLAYWRIGHT_COMMAND = """
import os, pathlib, sys
with open(os.environ["TEST_LOG"], "a") as log:
    print("playwright", *sys.argv[1:], file=log)
if os.environ["TEST_BROWSER_OF"] != "playwright":
    sys.exit("no network")
path = pathlib.Path(os.environ["TEST_DOWNLOAD"])
path.parent.mkdir()
path.write_text("#!/bin/sh\\necho Chromium 1.0\\n")
path.chmod(0o755)
"""
PLAYWRIGHT_API = """
import contextlib, os, types

@contextlib.contextmanager
def sync_playwright():
    yield types.SimpleNamespace(chromium=types.SimpleNamespace(executable_path=os.environ["TEST_DOWNLOAD"]))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_is_installed_where_there_is_a_browser(machine: Machine) -> None:
    machine.can_install_packages()
    machine.command("chromium", BROWSER)
    assert machine.get() == ""
    assert machine.calls == []


@pytest.mark.parametrize(
    ("as_root", "source", "lacks", "calls"),
    [
        (True, "apt-get", "nothing", ["apt-get update", "apt-get chromium-headless-shell"]),
        (
            *(True, "apt-get", "chromium-headless-shell"),
            ["apt-get update", "apt-get chromium-headless-shell", "apt-get chromium"],
        ),
        (True, "playwright", "nothing", ["apt-get update", "playwright chromium"]),
        (False, "playwright", "nothing", ["playwright chromium"]),
    ],
    ids=["package", "package with the browser", "no package", "not root"],
)
def test_a_browser_is_installed_once(
    machine: Machine, as_root: bool, source: str, lacks: str, calls: list[str]
) -> None:
    """One that does not start, as some distributions' program that only asks for another package, does not count."""
    machine.command("chromium-browser", STUB)
    machine.can_install_packages(as_root=as_root)
    machine.env |= {"TEST_BROWSER_OF": source, "TEST_LACKS": lacks}
    assert "SKIPPED" not in machine.get()
    assert [f"{call.split()[0]} {call.split()[-1].replace('-qq', 'update')}" for call in machine.calls] == calls
    assert machine.get() == ""  # it is found from now on
    assert len(machine.calls) == len(calls)


def test_without_any_it_says_so_loudly_and_the_next_call_tries_again(machine: Machine) -> None:
    machine.can_install_packages()
    for attempt in (1, 2):
        assert "tests/browser will be SKIPPED" in machine.get()
        assert machine.calls.count("playwright install chromium") == attempt
