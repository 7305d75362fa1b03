"""What a change most likely breaks, in less than a minute (``make check``): lint of the changed files, and tests of their rooms.

Changed is what differs from the commit at which this branch left ``main``, committed or not. Tests that import a changed
module run first, then those of its room, without those in a browser, until the time is up. ``make test`` runs all tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
TESTS_END_AFTER_S = 40  # no test starts later; the rest of the minute is for lint, imports and the last test
_DEADLINE, _FIRST = "ROSEPLAY_CHECK_DEADLINE", "ROSEPLAY_CHECK_FIRST"


# -- the program


def _git(*arguments: str) -> list[str]:
    result = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        print(f"make check compares with git, which says: {result.stderr.strip()}", file=sys.stderr)
        sys.exit(2)
    return result.stdout.splitlines()


def changed_files(since: str | None) -> list[str]:
    """Paths, relative to the repository, of existing files that differ from ``since`` or where the branch left main."""
    if since is None:
        has_main = bool(_git("branch", "--list", "main"))
        since = _git("merge-base", "HEAD", "main")[0] if has_main else "HEAD"
    paths = {*_git("diff", "--name-only", since, "--"), *_git("ls-files", "--others", "--exclude-standard")}
    return sorted(path for path in paths if (ROOT / path).is_file())


def lint_commands(changed: list[str]) -> list[list[str]]:
    python = [path for path in changed if path.endswith(".py")]
    scripts = [path for path in changed if path.startswith(("roseplay/", "tests/")) and path.endswith((".js", ".css"))]
    modules = [path for path in scripts if path.endswith(".js")]
    commands = []
    if python:
        commands += [[str(BIN / "ruff"), "check", *python], [str(BIN / "ruff"), "format", "--check", *python]]
    if modules:
        commands += [
            [str(BIN / "deno"), "lint", "--quiet", *modules],
            [str(BIN / "deno"), "check", "--quiet", *modules],
        ]
    if scripts:
        commands += [[str(BIN / "deno"), "fmt", "--quiet", "--check", *scripts]]
    return commands


def tests_of(changed: list[str]) -> tuple[list[str], list[str]]:
    """Returns the folders and files of tests to run, and which of their files come first."""
    names = {dotted_name(path) for path in changed if path.endswith(".py")}
    first = [path for path in changed if Path(path).match("test_*.py") and "/browser/" not in path]
    rooms: set[str] = set()
    files = ["tests/test_structure.py", *first]
    for path in changed:
        top, room, *below = [*path.replace("/extras/", "/extras:", 1).split("/"), ""]
        room = room.replace(":", "/")
        if path.endswith((".js", ".css")):
            rooms.add("tests/play/static")
        elif top in ("roseplay", "tests") and below and room != "browser" and (ROOT / "tests" / room).is_dir():
            rooms.add(f"tests/{room}")
    if "tests/play" in rooms:  # which holds it
        rooms.discard("tests/play/static")
    folders = [ROOT / room for room in sorted(rooms)]
    candidates = [
        *(path for folder in folders for path in folder.rglob("test_*.py")),
        *(ROOT / "tests").glob("test_*.py"),
    ]
    for path in candidates:
        text = path.read_text(encoding="utf-8")
        if any(name in text for name in names):
            first.append(path.relative_to(ROOT).as_posix())
    # A file beside a folder that holds it would be collected twice.
    files = [
        path for path in dict.fromkeys([*files, *first]) if not path.startswith(tuple(f"{room}/" for room in rooms))
    ]
    return [*sorted(rooms), *files], first


def dotted_name(path: str) -> str:
    """The name by which tests import a file: ``roseplay/core/step.py`` is ``roseplay.core.step``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def main() -> int:
    """Returns 0 if lint and the tests that ran pass."""
    parser = argparse.ArgumentParser(prog="make check", description=__doc__.partition("\n")[0])
    parser.add_argument("--since", metavar="COMMIT", help="compare with this commit instead")
    deadline = time.time() + TESTS_END_AFTER_S
    changed = changed_files(parser.parse_args().since)
    if not changed:
        print("nothing has changed")
        return 0
    environment = {**os.environ, "DENO_NO_UPDATE_CHECK": "1"}
    failed = [
        command for command in lint_commands(changed) if subprocess.run(command, cwd=ROOT, env=environment).returncode
    ]
    tests, first = tests_of(changed)
    print("tests:", *tests, flush=True)
    environment |= {_DEADLINE: str(deadline), _FIRST: " ".join(first), "PYTHONDONTWRITEBYTECODE": ""}
    pytest_options = ["-q", "-p", "tests.check", "-m", "not slow and not soak and not browser"]
    spread = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", *pytest_options, *spread, *tests]
    code = subprocess.run(command, cwd=ROOT, env=environment).returncode
    return 1 if failed or code not in (0, pytest.ExitCode.NO_TESTS_COLLECTED) else 0


# -- the plugin of pytest, in the processes that run the tests and in the one that reports


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = os.environ.get(_FIRST, "").split()
    items.sort(key=lambda item: item.nodeid.partition("::")[0] not in first)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Run no test after the deadline; returning True tells pytest that the test has been dealt with."""
    return True if time.time() > float(os.environ.get(_DEADLINE, "inf")) else None


_ran: set[str] = set()
_collected: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _ran.add(report.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    _collected.update(ids)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missed = len(_collected - _ran)
    if missed:
        terminalreporter.line(f"{missed} of {len(_collected)} tests had no time; `make test` runs all")


if __name__ == "__main__":
    sys.exit(main())
