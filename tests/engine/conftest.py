from __future__ import annotations

import pytest

from roseplay import Engine
from tests.model.families import FAMILIES, tiny_model


@pytest.fixture(scope="session")
def tiny_llama():
    return tiny_model(FAMILIES["llama"]())


@pytest.fixture
def engine(tiny_llama):
    """A small engine with a model of 97 tokens, context 64 and no tokenizer."""
    with Engine(tiny_llama, block_size=4, num_blocks=100, step_timeout_s=30) as engine:
        yield engine


@pytest.fixture(scope="module")
def chat_engine():
    """The embedded model; tests that use it leave it idle and its knobs as they were."""
    with Engine("tiny-chat", num_blocks=400) as engine:
        yield engine
