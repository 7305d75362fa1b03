"""How errors, a request's times, and unreadable telemetry are reported to programs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.exceptions import HTTPException

from roseplay.core.budget import RequestTooLargeError
from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.engine.request_metrics import RequestMetrics
from roseplay.serve.answers import metrics_of
from roseplay.serve.bodies import Message
from roseplay.serve.errors import ApiError, api_error


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (EngineError("it died"), 503, "service_unavailable_error", "engine_failed"),
        (EngineBusyError("full"), 429, "rate_limit_error", "queue_full"),
        (RequestTooLargeError("too long"), 400, "invalid_request_error", "context_length_exceeded"),
        (ValueError("wrong"), 400, "invalid_request_error", None),
        (HTTPException(403, "not yours"), 403, "invalid_request_error", None),
        (KeyError("a bug"), 500, "server_error", "server_error"),
    ],
)
def test_errors_have_openais_shape(error: Exception, status: int, kind: str, code: str | None) -> None:
    response = api_error(error).response()
    assert response.status_code == status
    told = json.loads(bytes(response.body))["error"]
    assert (told["type"], told["code"], told["param"]) == (kind, code, None)
    assert told["message"] == (
        "the server failed; its log says why" if status == 500 else getattr(error, "detail", str(error))
    )
    assert response.headers.get("retry-after") == ("1" if status == 429 else None)


def test_an_error_of_the_api_stays_as_it_is() -> None:
    error = ApiError(404, "two\nlines", param="model", code="c")
    assert api_error(error) is error
    assert error.document()["error"] == {
        "message": "two lines", "type": "not_found_error", "param": "model", "code": "c",
    }  # fmt: skip


def test_times_of_a_request_are_milliseconds() -> None:
    ms = 1_000_000
    metrics = RequestMetrics(10 * ms, 5, scheduled_ns=12 * ms, finished_ns=60 * ms)
    for at in (20, 30, 50):
        metrics.took(at * ms)
    assert metrics_of(metrics) == {
        "time_to_first_token_ms": 10.0, "generation_time_ms": 30.0, "queue_time_ms": 2.0, "mean_itl_ms": 15.0,
        "tokens_per_second": 60.0,
    }  # fmt: skip
    assert set(metrics_of(RequestMetrics(10, 5)).values()) == {None}


def test_a_message_has_a_name_only_if_it_was_given() -> None:
    assert Message(role="user", content="Hi").as_prompt() == {"role": "user", "content": "Hi"}
    parts: Any = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert Message(role="developer", content=parts, name="N").as_prompt() == {
        "role": "system", "content": "ab", "name": "N",
    }  # fmt: skip
