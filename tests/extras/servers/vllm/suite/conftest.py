"""vLLM for CPUs, which ``make vllm`` installs, with a tiny model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.extras.servers.vllm.suite import tiny_model
from tests.extras.servers.vllm.suite.probe_reader import Reader
from tests.extras.servers.vllm.suite.server import Server, serving


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not Path(os.environ.get("VLLM", "")).is_file():
        pytest.skip("vLLM is not installed: make vllm installs it and runs these tests")
    folder = tmp_path_factory.mktemp("tiny")
    tiny_model.write(folder)
    return folder


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(model, tmp_path_factory.mktemp("vllm")) as server:
        yield server


@pytest.fixture
def reader(server: Server) -> Iterator[Reader]:
    with closing(Reader(server.steps_port)) as reader:
        yield reader
        reader.order(set=reader.snapshot()["most"] | {"long_prefill_token_threshold": 0})
