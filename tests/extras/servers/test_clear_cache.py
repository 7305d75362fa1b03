"""Clearing the prefix cache of a server that may refuse for a moment."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from fastapi import Response

from roseplay.config import SamplingParams
from roseplay.engine.errors import EngineError
from roseplay.extras.servers.engine import CLEAR_ATTEMPTS, HttpEngine
from roseplay.extras.servers.timings import Timings
from tests.extras.servers.servers import Script, attached, words


def test_it_is_the_servers_cache_that_is_cleared(remote: HttpEngine) -> None:
    def cached() -> int:
        return remote.submit(list(range(20, 90)), SamplingParams(max_new_tokens=1)).result(60).metrics.cached_tokens

    cached()
    assert cached() > 0
    remote.clear_cache()
    assert cached() == 0


@pytest.mark.parametrize("refusals", [0, 2, 99])
def test_a_server_that_refuses_is_asked_again(refusals: int) -> None:
    script = Script(words("Yes"))
    asked: list[int] = []

    @script.app.post("/flush_cache")
    def flush_cache() -> Response:
        asked.append(1)
        return Response("Requests are running.", 400 if len(asked) <= refusals else 200)

    refused = pytest.raises(EngineError, match="/flush_cache: .* 400: Requests are running")
    with attached(script, timings=Timings(clear_again_s=0.0)) as remote, refused if refusals == 99 else nullcontext():
        remote.clear_cache()
    assert len(asked) == min(refusals + 1, CLEAR_ATTEMPTS)


@pytest.mark.parametrize(
    ("owner", "reason"),
    [
        ("someone", "this server has no route here that clears its prefix cache"),
        ("vllm", "vLLM has no route here that clears its prefix cache: start it with VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_a_server_without_such_a_route(owner: str, reason: str) -> None:
    script = Script(words("Yes"), card={"owned_by": owner})
    with attached(script) as remote:
        assert not remote.capabilities.clear_cache
        assert remote.capabilities.reasons["clear_cache"] == reason
        with pytest.raises(ValueError, match="no route here that clears"):
            remote.clear_cache()
