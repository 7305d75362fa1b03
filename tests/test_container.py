"""The Containerfile: its steps run one by one in a folder, with no program at hand but Python and a shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parent.parent


def steps() -> list[tuple[str, str]]:
    """The instructions, each with what follows it."""
    lines = (REPOSITORY / "Containerfile").read_text().splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if word and word != "#"]


def test_the_image_is_small_not_root_and_watched() -> None:
    found = dict(steps())
    assert found["FROM"].endswith("-slim")
    assert found["USER"].split(":")[0] not in ("0", "root")
    assert "HEALTHCHECK" in found
    assert not [rest for word, rest in steps() if word == "RUN" and re.search(r"\b(apt|apt-get|gcc|make)\b", rest)]


def copy(names: str, app: Path) -> None:
    *sources, target = names.split()
    for source in sources:
        path, into = REPOSITORY / source, app / target
        if path.is_dir():
            shutil.copytree(path, into, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            into.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, into)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="the steps are a shell's")
def test_the_steps_make_a_server_that_becomes_healthy(tmp_path: Path) -> None:
    app, programs = tmp_path / "app", tmp_path / "programs"
    app.mkdir()
    programs.mkdir()
    for name, path in {"python": os.path.realpath(sys._base_executable), "sh": "/bin/sh"}.items():
        (programs / name).symlink_to(path)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"PATH": str(programs)}
    port = free_port()

    def here(text: str) -> str:
        return text.replace("/app", str(app)).replace("7860", str(port))

    def run(rest: str) -> None:
        subprocess.run(["sh", "-c", re.sub(r"--mount=\S+ ", "", rest)], cwd=app, env=env, check=True, timeout=1200)

    found = dict(steps())
    for word, rest in steps():
        if word == "COPY":
            copy(rest, app)
        elif word == "RUN":
            run(rest)
        elif word in ("ENV", "ARG"):
            values = dict(value.split("=", 1) for value in shlex.split(here(rest)))
            env |= {name: value.replace("$PATH", env["PATH"]) for name, value in values.items()}
    env |= {"HOME": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "numba")}
    python = str(app / ".venv/bin/python")
    check = [python, *json.loads(here(found["HEALTHCHECK"]).partition("CMD ")[2])[1:]]
    command = [*json.loads(found["CMD"]), "--port", str(port)]
    command[0] = str(app / ".venv/bin" / command[0])
    with subprocess.Popen(command, cwd=app, env=env) as server:
        try:
            wait_until(
                lambda: (
                    server.poll() is not None or subprocess.run(check, env=env, stderr=-3, check=False).returncode == 0
                ),
                "a healthy server",
                timeout=300,
            )
            assert server.poll() is None
        finally:
            server.send_signal(signal.SIGINT)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
