"""What extensions offer is found in the package's own folders and by entry points of other packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from roseplay.extensions import Command, Extension

EXTENSION = Extension(commands={"grow": Command("flowers.grow", "grow something")})
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with a package that has an extension with a command, and one whose extension cannot be imported."""
    for name, text in {"flowers": MODULE, "weeds": "import a_package_that_is_not_there"}.items():
        package, about = tmp_path / name, tmp_path / f"{name}-1.dist-info"
        package.mkdir()
        about.mkdir()
        (package / "__init__.py").write_text(text)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (about / "entry_points.txt").write_text(f"[roseplay.extensions]\n{name} = {name}:EXTENSION\n")
    (tmp_path / "flowers" / "grow.py").write_text("def main(argv):\n    print('grown', *argv)\n    return 3\n")
    return tmp_path


def test_a_command_of_another_package_is_run_and_a_broken_extension_left_out(installed: Path) -> None:
    def roseplay(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "roseplay", *arguments]
        return subprocess.run(command, env={"PYTHONPATH": f"{installed}:."}, capture_output=True, text=True, timeout=60)

    usage = roseplay("--help")
    assert "\n  grow      grow something\n" in usage.stdout
    assert "the extension weeds (weeds:EXTENSION) cannot be loaded and is left out: No module named" in usage.stderr
    grown = roseplay("grow", "two", "--now")
    assert (grown.returncode, grown.stdout) == (3, "grown two --now\n")
