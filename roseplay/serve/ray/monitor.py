"""``/metrics`` of replicas: the families of each, with the label ``engine``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from roseplay.engine.telemetry import TelemetryEvent
from roseplay.serve.monitor import Monitor

if TYPE_CHECKING:
    from roseplay.serve.ray.engine import RayEngine


class RayMonitor(Monitor):
    """Asks the replicas for their figures at each scrape; counts the ingress's own replies."""

    def __init__(self, served: Any, **options: Any) -> None:
        super().__init__(served, **options)
        self._engine: RayEngine = served.engine

    def _take(self, event: TelemetryEvent) -> None:
        """Ignore the event: the replicas count their own."""

    def rejected(self) -> None:
        """Count nothing: no replica has seen the request, and ``http_requests_total`` has its status."""

    def engine_exposition(self) -> bytes:
        return merged(self._engine.expositions())


def merged(expositions: list[bytes]) -> bytes:
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
