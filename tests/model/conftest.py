"""One torch thread, since the models are tiny and two threads on busy cores wait for each other; and short warm-ups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.model.families import FAMILIES, tiny_model
from tests.model.harness import recording_options, saved, torch_threads


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.fixture(autouse=True, scope="module")
def short_warm_up() -> Iterator[None]:
    """About a hundred engines start here, so each records only a size or two at the start, and others as they occur."""
    with recording_options(warm_up_tokens=2):
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a Llama in bfloat16, which tests only read."""
    return saved(tiny_model(FAMILIES["llama"]()).to(torch.bfloat16), tmp_path_factory.mktemp("checkpoint"))
