"""Combinations of values that include every pair of values of two factors: nearly as thorough as the full product."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest


def pairwise(factors: Mapping[str, Sequence[Any]], tries: int = 40) -> list[dict[str, Any]]:
    """Returns a small set of combinations that includes each pair of values, found greedily and always the same."""
    rng = random.Random(0)
    names = list(factors)
    left = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in range(len(factors[a]))
        for j in range(len(factors[b]))
    }
    found = []
    while left:
        a, i, b, j = min(left)
        best: dict[str, int] = {}
        met: set[tuple[str, int, str, int]] = set()
        for _ in range(tries):
            trial = {name: rng.randrange(len(factors[name])) for name in names} | {a: i, b: j}
            meets = {(x, trial[x], y, trial[y]) for x, y in itertools.combinations(names, 2)} & left
            if len(meets) > len(met):
                best, met = trial, meets
        left -= met
        found.append({name: factors[name][best[name]] for name in names})
    return found


def product_of(**factors: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test with the full product; combinations that ``pairwise`` does not choose are marked slow."""
    return _parametrized(factors, [tuple(values.values()) for values in pairwise(factors)])


def each_value_of(**factors: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test with the full product; a few combinations that include each value once are not marked slow.

    For cases that take seconds, as those of kernels that have to be compiled for each.
    """
    longest = max(map(len, factors.values()))
    return _parametrized(
        factors, [tuple(values[i % len(values)] for values in factors.values()) for i in range(longest)]
    )


def _parametrized(factors: Mapping[str, Sequence[Any]], chosen: list[tuple[Any, ...]]) -> pytest.MarkDecorator:
    cases = [
        pytest.param(*values, marks=() if values in chosen else pytest.mark.slow)
        for values in itertools.product(*factors.values())
    ]
    return pytest.mark.parametrize(tuple(factors), cases)
