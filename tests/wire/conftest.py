"""A small engine that keeps KV events, and sockets that are closed with their test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roseplay.config import EngineConfig, Knobs
from roseplay.engine.client import Engine
from roseplay.wire.extra import zmq
from tests.play.fake_engine import FakeEngine

CHEAP = {"block_size": 4, "pack_weights": False, "fuse_ops": False, "record_steps": False}


@pytest.fixture
def engine(tiny_llama) -> Iterator[Engine]:
    """Forty blocks, so that some are evicted, and chunked prompts."""
    knobs = Knobs(max_batch_size=4, prefill_max_tokens=8)
    with Engine(tiny_llama, num_blocks=40, kv_events=True, knobs=knobs, **CHEAP) as engine:
        yield engine


@pytest.fixture
def fake() -> FakeEngine:
    """An engine that makes no steps of its own."""
    engine = FakeEngine()
    engine.config = EngineConfig(kv_events=True)
    return engine


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = zmq.Context()
    yield context
    context.destroy(linger=0)
