"""A histogram that takes a whole step's values at once: there is one for each token, and locking for each would cost
more than everything else done for it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class GapHistogram(Collector):
    """One series with its labels. Only one thread may add values; any may collect.

    Args:
        bounds: upper ends of the buckets, in increasing order, without infinity.
    """

    def __init__(
        self, name: str, about: str, labels: Mapping[str, str], bounds: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name, self._about, self._labels = name, about, labels
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, values: Iterable[float]) -> None:
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def collect(self) -> Iterable[HistogramMetricFamily]:
        """Called by the registry for each scrape."""
        ends = [floatToGoString(bound) for bound in [*self._bounds, float("inf")]]
        family = HistogramMetricFamily(self._name, self._about, labels=list(self._labels))
        buckets = list(zip(ends, accumulate(self._counts), strict=True))
        family.add_metric(list(self._labels.values()), buckets=buckets, sum_value=self._sum)
        return [family]
