from __future__ import annotations

import pytest

from roseplay import Engine, Knobs


@pytest.fixture(scope="module")
def engine_of_all_tests(tiny_llama):
    with Engine(tiny_llama, block_size=4, num_blocks=100, step_timeout_s=30) as engine:
        yield engine


@pytest.fixture
def engine(engine_of_all_tests):
    """A small engine with a model of 97 tokens, context 64 and no tokenizer. It has no requests, and its cache is empty."""
    yield engine_of_all_tests
    engine_of_all_tests.abort_all()
    engine_of_all_tests.set_knobs(**Knobs().to_dict())
    engine_of_all_tests.clear_cache()


@pytest.fixture(scope="module")
def chat_engine():
    """The embedded model; tests that use it leave it idle and its knobs as they were."""
    with Engine("tiny-chat", num_blocks=400) as engine:
        yield engine
