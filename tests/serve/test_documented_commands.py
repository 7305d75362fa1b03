"""The commands in docs/api.md and the README run as written, against a server at another port."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from roseplay.engine.client import Engine

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = "http://127.0.0.1:7860"


def blocks(kind: str, contains: str) -> list[str]:
    """The code blocks of this kind that contain a word."""
    text = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/api.md"))
    return [block for block in re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) if contains in block]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("command", blocks("sh", "curl "))
def test_curl(command: str, address: str, engine: Engine) -> None:
    before = engine.knobs
    assert WRITTEN in command
    script = command.replace(WRITTEN, address).replace("curl ", "curl --silent --show-error --fail-with-body ")
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, timeout=120)
    engine.set_knobs(**before.to_dict())
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout


@pytest.mark.parametrize("program", blocks("python", "openai"))
def test_openai_client(program: str, address: str) -> None:
    assert WRITTEN in program
    command = [sys.executable, "-c", program.replace(WRITTEN, address)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 20


def test_there_are_such_commands() -> None:
    assert len(blocks("sh", "curl ")) >= 2 and len(blocks("python", "openai")) == 1
