from __future__ import annotations

import subprocess
import sys

import pytest

import roseplay
from roseplay.cli import COMMANDS, main


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)


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
def test_a_command_gets_its_arguments_and_gives_its_exit_code(monkeypatch, answer, code: int) -> None:
    import roseplay.bench.main

    seen = []
    monkeypatch.setattr(roseplay.bench.main, "main", lambda argv: seen.append(argv) or answer)
    assert main(["bench", "streaming", "--json", "x"]) == code
    assert seen == [["streaming", "--json", "x"]]
