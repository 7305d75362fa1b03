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


def each_value(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Returns as few combinations as include each value of each factor."""
    longest = max(len(values) for values in factors.values())
    return [
        {
            name: values[(i + i // len(values) * shift) % len(values)]
            for shift, (name, values) in enumerate(factors.items())
        }
        for i in range(longest)
    ]


def product_of(each_pair: bool = True, /, **factors: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test with the full product, of which some combinations run by default and the others are slow.

    Args:
        each_pair: whether every pair of values of two factors runs by default, and not only every value.
    """
    chosen = [tuple(values.values()) for values in (pairwise if each_pair else each_value)(factors)]
    cases = [
        pytest.param(*values, marks=() if values in chosen else pytest.mark.slow)
        for values in itertools.product(*factors.values())
    ]
    return pytest.mark.parametrize(tuple(factors), cases)
