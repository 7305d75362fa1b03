"""One torch thread: the models are tiny, and two threads on busy cores wait for each other. And short warm-ups."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from roseplay.kernels.cpu import recorded_steps


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def short_warm_up() -> Iterator[None]:
    """A hundred engines start here: each records a size or two, the others when they come."""
    before, recorded_steps.WARM_UP_TOKENS = recorded_steps.WARM_UP_TOKENS, 2
    yield
    recorded_steps.WARM_UP_TOKENS = before
