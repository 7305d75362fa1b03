"""``/health`` and ``/ready``: round trips through the engine's loop, so that a stuck loop is detected."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio.to_thread
from fastapi import APIRouter, Request, Response

from roseplay.serve.drain import Drain
from roseplay.serve.errors import refuse_other_methods
from roseplay.serve.keys import without_key
from roseplay.serve.served import Served

HEALTH_S = 1.0  # timeout of the engine's health check
HEALTH_WITHIN_S = 2.0  # the route answers within this time in any case


def health_router(served: Served, drain: Drain) -> APIRouter:
    """Returns the two routes. A client without the server's key receives only their status."""
    router = APIRouter()
    check = HealthCheck(served)

    async def report(request: Request, response: Response, *, draining: bool) -> dict[str, str]:
        ok, detail = await check()
        if ok and draining:
            ok, detail = False, "the server is shutting down and accepts no new requests"
        response.status_code = 200 if ok else 503
        response.headers["Cache-Control"] = "no-store"
        if without_key(request.scope):
            return {"status": "ok" if ok else "unavailable"}
        info = served.engine.info
        return {
            "status": "ok" if ok else detail,
            "detail": detail,
            "boot_id": served.boot_id,
            "model": info.model,
            "device": info.device,
            "dtype": info.dtype,
        }

    @router.get("/health")
    @router.head("/health", include_in_schema=False)
    async def health(request: Request, response: Response) -> dict[str, str]:
        """200 while the engine answers; what it does now is the detail."""
        return await report(request, response, draining=False)

    @router.get("/ready")
    @router.head("/ready", include_in_schema=False)
    async def ready(request: Request, response: Response) -> dict[str, str]:
        """200 while the server takes new requests."""
        return await report(request, response, draining=drain.began)

    refuse_other_methods(router)
    return router


class HealthCheck:
    """Checks the engine's health in a thread of its own, once for all concurrent requests."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._thread: anyio.CapacityLimiter | None = None  # can only be made while an event loop runs
        self._asking: asyncio.Future[Any] | None = None

    async def __call__(self) -> tuple[bool, str]:
        """Returns whether the engine is healthy, and what it does or what is wrong, within ``HEALTH_WITHIN_S``."""
        if self._thread is None:
            self._thread = anyio.CapacityLimiter(1)
        if self._asking is None or self._asking.done():
            asking = anyio.to_thread.run_sync(self._served.engine.health, HEALTH_S, limiter=self._thread)
            self._asking = asyncio.ensure_future(asking)
        try:
            async with asyncio.timeout(HEALTH_WITHIN_S):
                report = await asyncio.shield(self._asking)
        except TimeoutError:
            return False, f"the engine did not report its health within {HEALTH_WITHIN_S:g} s"
        return report.ok, report.detail
