"""Our server for test suites written by others. ``make conformance`` installs these suites and runs this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roseplay.config import Knobs
from roseplay.engine.client import Engine
from tests.serve.conftest import serving

MODEL = "tiny-chat"


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with Engine(MODEL, worker="thread", threads=1, num_blocks=400, knobs=Knobs(max_batch_size=8)) as engine:
        yield engine


@pytest.fixture(scope="session")
def address(engine: Engine) -> Iterator[str]:
    with serving(engine) as address:
        yield address
