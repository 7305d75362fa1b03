"""One torch thread, since the models are tiny and two threads on busy cores wait for each other; and short warm-ups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.model.harness import recording_options


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def short_warm_up() -> Iterator[None]:
    """About a hundred engines start here, so each records only a size or two at the start, and others as they occur."""
    with recording_options(warm_up_tokens=2):
        yield
