"""Settings refuse values that no part of the engine could support."""

from __future__ import annotations

import pytest

from roseplay import Knobs, SamplingParams


@pytest.mark.parametrize("stop", [["a"] * 17, ["a" * 257], [str(i) for i in range(1_000_000)]])
def test_stop_strings_are_bounded(stop):
    with pytest.raises(ValueError, match="at most 16 strings of at most 256 characters"):
        SamplingParams(stop=stop)


def test_as_many_stop_strings_as_are_allowed_are_taken():
    assert len(SamplingParams(stop=[str(i) * 128 for i in range(10, 26)]).stop) == 16


@pytest.mark.parametrize("size", [0, 4097, 10**12])
def test_the_batch_size_is_bounded(size):
    with pytest.raises(ValueError, match="use an integer from 1 to 4096"):
        Knobs(max_batch_size=size)
