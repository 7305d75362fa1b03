"""Readers of an engine's telemetry either use the events of a server's client or ignore them."""

from __future__ import annotations

import pytest

from roseplay.engine.telemetry import Load, LoadEvent, TelemetryEvent, TokenEvent, TokensEvent
from roseplay.serve.metrics import Metrics
from roseplay.serve.request_log import log_request
from roseplay.wire.step_sums import StepSums
from tests.play.fake_engine import INFO

EVENTS = [TokensEvent([TokenEvent(1, -1, 5, None)]), LoadEvent(5, Load(running=3))]


@pytest.mark.parametrize("event", EVENTS, ids=["tokens", "load"])
def test_what_is_not_for_them_is_left_out(event: TelemetryEvent) -> None:
    Metrics(INFO).take(event)
    log_request(event)
    assert StepSums("worker", "execute_model_cpu").take(event) is None
