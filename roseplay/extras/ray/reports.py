"""The metrics of replicas as one text: of those that answer, and what those that have ended last reported."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

MOST_ENDED = 16  # reports of ended replicas that are kept apart, since one of them may answer again


class Report(NamedTuple):
    """A replica's metrics in Prometheus' text format."""

    replica: str  # a name that no other replica has or will have, unlike its label
    exposition: bytes


class Reports:
    """The last report of each replica. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: dict[str, bytes] = {}  # the oldest first
        self._live: set[str] = set()

    def take(self, answered: Iterable[Report]) -> None:
        """Take the reports of all replicas that answer; the others have ended, unless they answer again."""
        live = dict(answered)
        with self._lock:
            self._live = set(live)
            self._last |= live
            silent = [replica for replica in self._last if replica not in live]
            if len(silent) > MOST_ENDED:
                kept = [self._last.pop(replica) for replica in silent[:-1]]
                self._last[silent[-1]] = ended([*kept, self._last[silent[-1]]])

    def exposition(self) -> bytes:
        """Returns the families of all replicas."""
        with self._lock:
            live = [self._last[replica] for replica in self._live]
            over = [text for replica, text in self._last.items() if replica not in self._live]
        return merged([*live, ended(over)])


def merged(expositions: Iterable[bytes]) -> bytes:
    """Merge expositions in Prometheus' text format: the result has each family once, with the samples of all."""
    families: dict[str, list[str]] = {}
    for exposition in expositions:
        family, fresh = "", False
        for line in exposition.decode().splitlines():
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                fresh = family not in families
                families.setdefault(family, [])
            if fresh or not line.startswith("#"):
                families[family].append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines).encode()


def ended(expositions: Iterable[bytes]) -> bytes:
    """Returns the counters and histograms of replicas that have ended, added up where the labels are equal.

    Each sample has one more label, ``ended="true"``. Gauges are left out: they were of a moment.
    """
    families: dict[str, Metric] = {}
    for exposition in expositions:
        for family in text_string_to_metric_families(exposition.decode()):
            if family.type in ("counter", "histogram"):
                total = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                total.samples += family.samples
    for family in families.values():
        sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in family.samples:
            key = sample.name, tuple(sorted({**sample.labels, "ended": "true"}.items()))
            sums[key] = sums.get(key, 0.0) + sample.value
        family.samples = [Sample(name, dict(labels), value) for (name, labels), value in sums.items()]
    registry = CollectorRegistry()
    registry.register(_Families(families.values()))
    return generate_latest(registry)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return iter(self._families)
