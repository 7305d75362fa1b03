"""Servers in their own processes: ours, llama.cpp's, and guidellm's mock. Each is skipped if it is not installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from roseplay.engine.errors import EngineStartError
from roseplay.extras.servers.engine import HttpEngine
from tests.gguf_files import write_tiny_chat

STARTS_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def our_server() -> Iterator[str]:
    """``roseplay serve``."""
    with running([sys.executable, "-m", "roseplay", "serve", "--model", "tiny-chat", "--threads", "1"]) as url:
        yield url


@pytest.fixture(scope="module")
def llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """llama.cpp's server with tiny-chat as a GGUF file, for four simultaneous requests."""
    program = _program("LLAMA_SERVER", "llama-server")
    pytest.importorskip("gguf", reason="writes the model for llama.cpp: pip install gguf")
    model = tmp_path_factory.mktemp("gguf") / "tiny-chat.gguf"
    write_tiny_chat(model)
    options = ["--model", str(model), "--alias", "tiny-chat", "--metrics", "--jinja", "--threads", "2"]
    with running([program, *options, "--parallel", "4", "--ctx-size", "8192", "--host", "127.0.0.1"]) as url:
        yield url


@pytest.fixture(scope="module")
def guidellm_mock() -> Iterator[str]:
    """guidellm's mock server: 50 ms to the first token, 10 ms between tokens."""
    program = _program("GUIDELLM", "guidellm")
    options = ["--host", "127.0.0.1", "--model", "tiny-chat", "--ttft-ms", "50", "--itl-ms", "10"]
    with running([program, "mock-server", *options]) as url:
        yield url


def _program(variable: str, name: str) -> str:
    found = os.environ.get(variable) or shutil.which(name)
    if not found or not Path(found).is_file():
        pytest.skip(f"{name} is not installed: put it on the path, or its path into {variable}")
    return found


@contextmanager
def running(command: Sequence[str]) -> Iterator[str]:
    """Run a server at a free port; yields the address of its API once it responds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/v1"
    with subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        try:
            _wait(url, process)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            HttpEngine(url).close()
            return
        except EngineStartError as error:
            assert process.poll() is None, process.stderr.read().decode()[-2000:] if process.stderr else ""
            assert time.monotonic() < deadline, str(error)
            time.sleep(0.3)
