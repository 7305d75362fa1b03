"""Arrival times: seconds since the start of a workload, in order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count as count_up
from itertools import islice
from typing import Literal

Spacing = Literal["poisson", "even"]


def burst(count: int) -> list[float]:
    """Returns ``count`` arrivals at time 0."""
    return [0.0] * _checked(count)


def fixed_interval(count: int, interval_s: float) -> list[float]:
    """Returns one arrival every ``interval_s`` seconds; 0 gives a burst."""
    if not 0 <= interval_s < float("inf"):
        raise ValueError(f"the interval is {interval_s}: use seconds, 0 or more")
    return [index * interval_s for index in range(_checked(count))]


def poisson(count: int, rate_per_s: float, *, seed: int = 0) -> list[float]:
    """Returns independent arrivals, ``rate_per_s`` per second on average, with exponential gaps drawn from the seed."""
    return list(islice(endless("poisson", rate_per_s, seed=seed), _checked(count)))


def endless(spacing: Spacing, rate_per_s: float, *, seed: int = 0) -> Iterator[float]:
    """Yields endless arrivals, ``rate_per_s`` per second on average: evenly spaced, or as in ``poisson``."""
    if not 0 < rate_per_s < float("inf"):
        raise ValueError(f"the rate is {rate_per_s}: use arrivals per second, above 0")
    if spacing == "even":
        yield from (index / rate_per_s for index in count_up())
    rng = random.Random(f"arrivals {seed}")
    now = 0.0
    while True:
        yield now
        now += rng.expovariate(rate_per_s)


def _checked(count: int) -> int:
    if count < 1:
        raise ValueError(f"the number of requests is {count}: use at least 1")
    return count
