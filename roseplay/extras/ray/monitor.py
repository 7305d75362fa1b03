"""What replicas report: ``/v1/replicas``, side by side; and ``/metrics``, the families of each, with the label ``engine``, and
what clients of the ingress saw."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from prometheus_client import Counter

from roseplay.core.request import FinishReason
from roseplay.engine.errors import EngineError
from roseplay.engine.telemetry import RequestEvent, TelemetryEvent
from roseplay.engine.ticker import Ticker
from roseplay.extras.ray.reports import Reports
from roseplay.serve.errors import PREFIX, OpenAIRoute, refuse_other_methods
from roseplay.serve.monitor import Monitor

if TYPE_CHECKING:
    from roseplay.extras.ray.engine import RayEngine

REPORT_S = 1.0  # what a replica counts in this time is lost when it dies, but for what clients received


class RayMonitor(Monitor):
    """Asks the replicas for their figures, at each scrape and in between; counts the ingress's own replies and ends."""

    def __init__(self, served: Any, **options: Any) -> None:
        super().__init__(served, **options)
        self._engine: RayEngine = served.engine
        self._reports = Reports()
        failure = "the replicas' metrics could not be read"
        self._reporting = Ticker("roseplay-reports", self._report, REPORT_S, failure)
        model = self._names.listed(served.engine)[0]
        about = "Requests that ended, by what their clients were told; resent ones count once."
        ends = Counter("roseplay:client_requests", about, ["model_name", "finished_reason"], registry=self._http)
        self._ends = {reason: ends.labels(model, str(reason.value)) for reason in FinishReason}
        about = "Tokens of requests that ended, as their clients received them, those of replicas that died included."
        self._tokens = Counter("roseplay:client_tokens", about, ["model_name"], registry=self._http).labels(model)
        about = "Times that a request without tokens was sent to another replica."
        resent = Counter("roseplay:resent_requests", about, ["model_name"], registry=self._http)
        self._resent = resent.labels(model)

    def start(self) -> None:
        super().start()
        self._reporting.start()

    def close(self) -> None:
        self._reporting.close()
        super().close()

    def _take(self, event: TelemetryEvent) -> None:
        """Count an end; the replicas count everything else."""
        if isinstance(event, RequestEvent) and event.kind == "finished" and event.stream is not None:
            if event.stream.finish_reason is not None:
                self._ends[event.stream.finish_reason].inc()
            self._tokens.inc(event.stream.num_tokens)
            self._resent.inc(getattr(event.stream, "sendings", 1) - 1)

    def rejected(self) -> None:
        """Count nothing: no replica has seen the request, and ``http_requests_total`` has its status."""

    def engine_exposition(self) -> bytes:
        self._reports.take(self._engine.reports())
        return self._reports.exposition()

    def _report(self) -> None:
        with contextlib.suppress(EngineError):  # not all answered
            self._reports.take(self._engine.reports())


def replicas_router(engine: RayEngine) -> APIRouter:
    """Returns the route of an ingress's replicas."""
    router = APIRouter(prefix=PREFIX, route_class=OpenAIRoute)

    @router.get("/replicas")
    def replicas() -> dict[str, Any]:
        """The figures of all replicas that answer, by their labels."""
        return {"object": "list", "data": [{"object": "replica", **replica._asdict()} for replica in engine.replicas()]}

    refuse_other_methods(router)
    return router
