"""Publishes the metrics of each step, and a heartbeat every second while there are none."""

from __future__ import annotations

import time
from typing import Any

from roseplay.wire.extra import msgspec
from roseplay.wire.forward_pass import ForwardPassMetrics, encode_forward_pass
from roseplay.wire.sockets import Publication

HEARTBEAT_S = 1.0


class ForwardPassPublisher:
    """A PUB socket for forward pass metrics. Only one thread may use it at a time."""

    def __init__(self, context: Any, endpoint: str, worker_id: str) -> None:
        self.publication = Publication(context, endpoint)
        self._worker_id = worker_id
        self._sent_at = time.monotonic()

    def publish(self, metrics: ForwardPassMetrics) -> None:
        """Publish a step's metrics under the next number."""
        numbered = msgspec.structs.replace(metrics, counter_id=self.publication.next)
        self.publication.send(encode_forward_pass(numbered))
        self._sent_at = time.monotonic()

    def skip(self) -> None:
        """Leave a gap in the numbers for metrics that are missing."""
        self.publication.skip()

    def beat(self) -> None:
        """Publish a heartbeat if nothing was published for ``HEARTBEAT_S``."""
        if time.monotonic() - self._sent_at >= HEARTBEAT_S:
            self.publish(ForwardPassMetrics(worker_id=self._worker_id))
