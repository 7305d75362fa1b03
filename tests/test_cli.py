from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

import roseplay
from roseplay.cli import CORE, main
from roseplay.extensions import commands
from roseplay.recording.reader import demo_path


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in CORE | commands())


def test_no_command_is_help_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: roseplay" in capsys.readouterr().out


def test_an_unknown_command_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dance"]) == 2
    err = capsys.readouterr().err
    assert "dance" in err
    assert len(err.splitlines()) == 1


def test_python_m_roseplay_is_the_same_command() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "roseplay", "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout == f"roseplay {roseplay.__version__}\n"


@pytest.mark.parametrize(("answer", "code"), [(None, 0), (0, 0), (2, 2)])
def test_a_command_gets_its_arguments_and_gives_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, answer: int | None, code: int
) -> None:
    seen: list[list[str]] = []
    command = SimpleNamespace(main=lambda argv: seen.append(argv) or answer)
    monkeypatch.setitem(sys.modules, "roseplay.recording.command", command)
    assert main(["export", "run.jsonl", "--csv", "x"]) == code
    assert seen == [["run.jsonl", "--csv", "x"]]


ENDING = """
import atexit, sys, time, types
from roseplay import cli

class Kept:
    def __del__(self):
        time.sleep(1000)

def main(argv):
    atexit.register(print, "handler", end="")
    print(*argv, end=" ")
    {ends}

sys.modules["command"] = module = types.ModuleType("command")
module.main, module.kept = main, {kept}
cli.CORE["command"] = cli.Command("command", "")
cli.program("command", "first")
"""


@pytest.mark.parametrize(
    ("ends", "kept", "code", "error"),
    [
        ("return 3", "Kept()", 3, ""),
        ("return None", "Kept()", 0, ""),
        ("sys.exit(2)", "None", 2, ""),
        ("raise OSError", "None", 1, "OSError"),
    ],
)
def test_a_program_ends_with_its_output(ends: str, kept: str, code: int, error: str) -> None:
    script = ENDING.format(ends=ends, kept=kept)
    done = subprocess.run([sys.executable, "-c", script, "second"], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("first second handler", code)
    assert (error in done.stderr) if error else not done.stderr


def test_output_that_cannot_be_written_is_no_success() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", ENDING.format(ends="return 0", kept="None")]
    buffered = os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, env=buffered, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert done.returncode == 120 and "BrokenPipeError" in done.stderr


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split()))  # to import them is an error
from roseplay.cli import main
sys.exit(main(sys.argv[1:]))
"""
PAGE = "gradio roseplay.play"


def run_without(modules: str, command: Sequence[str], folder: Path) -> bytes:
    """Run a command where importing some modules is an error; returns what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, modules, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(roseplay.__file__).parents[1])},
        capture_output=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_exports_need_no_page_and_no_engine(tmp_path: Path) -> None:
    export = ["export", str(demo_path()), "--trace", "t.json", "--csv", "t.csv", "--report", "r.html"]
    run_without(f"{PAGE} torch transformers roseplay.engine.client", export, tmp_path)
    assert all((tmp_path / name).stat().st_size for name in ("t.json", "t.csv", "r.html"))
