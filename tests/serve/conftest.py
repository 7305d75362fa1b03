"""An engine with the embedded model behind its API, at a port of this machine."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import uvicorn
from fastapi import FastAPI

from roseplay.config import Knobs
from roseplay.engine.client import Engine
from roseplay.serve.api import api_router
from roseplay.serve.submissions import Submissions


@pytest.fixture(scope="package")
def engine() -> Iterator[Engine]:
    with Engine("tiny-chat", worker="thread", threads=1, num_blocks=200, knobs=Knobs(max_batch_size=8)) as engine:
        yield engine


@pytest.fixture(scope="package")
def address(engine: Engine) -> Iterator[str]:
    app = FastAPI()
    app.include_router(api_router(SimpleNamespace(engine=engine, submissions=Submissions())))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(timeout=10)
