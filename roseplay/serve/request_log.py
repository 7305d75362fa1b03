"""Logs a line for each request that ends."""

from __future__ import annotations

import logging

from roseplay.engine.telemetry import RequestEvent, TelemetryEvent

_log = logging.getLogger("roseplay.requests")


def log_request(event: TelemetryEvent) -> None:
    """Log the sizes and times of a request that has ended, but none of its text."""
    if not isinstance(event, RequestEvent) or event.kind != "finished" or event.stream is None:
        return
    stream = event.stream
    metrics, reason = stream.metrics, stream.finish_reason
    why = f" ({stream.error})" if stream.error else ""
    _log.info(
        "request %d: %s%s, prompt %d tokens (%d cached), answer %d, queue %s, TTFT %s, TPOT %s, E2E %s",
        *(event.request_id, reason, why, metrics.prompt_tokens, metrics.saved_tokens, metrics.completion_tokens),
        *map(_ms, (metrics.queue_s, metrics.ttft_s, metrics.tpot_s, metrics.e2e_s)),
    )


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.1f} ms"
