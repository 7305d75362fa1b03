"""An engine with the embedded model, used both in this process and through a server's client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roseplay.config import Knobs
from roseplay.engine.client import Engine
from roseplay.extras.servers.engine import HttpEngine
from tests.serve.conftest import serving


@pytest.fixture(scope="package")
def engine() -> Iterator[Engine]:
    with Engine("tiny-chat", worker="thread", threads=1, num_blocks=1000, knobs=Knobs(max_batch_size=16)) as engine:
        yield engine


@pytest.fixture(scope="package")
def address(engine: Engine) -> Iterator[str]:
    with serving(engine) as address:
        yield address


@pytest.fixture
def remote(address: str) -> Iterator[HttpEngine]:
    with HttpEngine(address) as remote:
        yield remote
