"""Publishes the metrics of each step, and while there are none a sign of life every second."""

from __future__ import annotations

import time
from typing import Any

from roseplay.wire.extra import msgspec
from roseplay.wire.forward_pass import ForwardPassMetrics, encode_forward_pass
from roseplay.wire.sockets import Publication

HEARTBEAT_S = 1.0


class ForwardPassPublisher:
    """A PUB socket for forward pass metrics. For one thread at a time."""

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
        """Note that metrics are missing."""
        self.publication.skip()

    def beat(self) -> None:
        """Publish a sign of life if nothing was published for a second."""
        if time.monotonic() - self._sent_at >= HEARTBEAT_S:
            self.publish(ForwardPassMetrics(worker_id=self._worker_id))
