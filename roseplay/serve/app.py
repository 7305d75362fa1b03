"""The web application for API clients: API, health, metrics, and the middleware that all our servers share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import PlainTextResponse

import roseplay
from roseplay.serve.admission import AdmissionGate
from roseplay.serve.api import api_router
from roseplay.serve.bodies import DetokenizeBody, TokenizeBody
from roseplay.serve.body_limits import MAX_BODY, BodyLimits
from roseplay.serve.drain import Drain, DrainGate
from roseplay.serve.errors import METHODS, OpenAIRoute, refuse_other_methods, refuse_unknown
from roseplay.serve.guard import Guard
from roseplay.serve.health import health_router
from roseplay.serve.keys import KeyGate
from roseplay.serve.model_names import ModelNames
from roseplay.serve.monitor import Monitor, ReplyCounter, metrics_router
from roseplay.serve.runtime_config import runtime_config_router
from roseplay.serve.served import Served
from roseplay.serve.submissions import Submissions
from roseplay.serve.submitting import detokenize, tokenize, tokenizer_info

if TYPE_CHECKING:
    from roseplay.engine.engine_like import EngineLike
    from roseplay.serve.traces import Traces  # needs an extra

# Token ids or text in fully escaped JSON, with room to reach the check that reports a prompt as too long.
MAX_PROMPT_BYTES_PER_TOKEN = 64


class ServedEngine:
    """A running engine, served through the API alone. The caller closes it."""

    def __init__(self, engine: EngineLike) -> None:
        self.engine = engine
        self.submissions = Submissions()
        self.boot_id = uuid.uuid4().hex[:12]

    def set_knobs(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        return self.engine.set_knobs(**changes).to_dict()


def create_app(
    served: ServedEngine,
    hosts: Iterable[str],
    *,
    key: str | None = None,
    drain: Drain,
    log_requests: bool = False,
    traces: Traces | None = None,
    monitor: Monitor | None = None,
    names: Sequence[str] = (),
    origins: Collection[str] = (),
    routers: Iterable[APIRouter] = (),
) -> FastAPI:
    """Returns the application of an engine without a web page.

    Args:
        hosts: names of the server, see ``guard.allowed_hosts``.
        key: required of every client, unless None.
        drain: refuses new requests once it has begun.
        traces: records the API's requests; closed with the application.
        monitor: serves ``/metrics`` and logs requests; by default a new one for this engine.
        names: under which clients may also ask for the model, see ``ModelNames``.
        origins: web sites whose pages may use the API, see ``Guard``.
        routers: additional routes.
    """
    reporting = monitor or Monitor(served, log_requests=log_requests, traces=traces, names=names)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        reporting.start()
        try:
            yield
        finally:
            await asyncio.to_thread(reporting.close)  # requests of disconnected clients may still have to be aborted

    # Without pages of documentation, which load scripts from a CDN.
    app = FastAPI(title="roseplay", docs_url=None, redoc_url=None, lifespan=lifespan)
    most = max(MAX_BODY, MAX_PROMPT_BYTES_PER_TOKEN * served.engine.info.max_model_len)
    app.add_middleware(BodyLimits, max_bytes=lambda path: most)
    app.add_middleware(AdmissionGate, served=served)
    add_gates(app, hosts, key, drain, reporting, origins)
    app.include_router(health_router(served, drain))
    for router in routers:  # before the API's, which answers everything else below /v1
        app.include_router(router)
    add_program_routes(app, served, reporting, names, traces)

    @app.get("/", include_in_schema=False)
    def root() -> PlainTextResponse:
        return PlainTextResponse(
            f"roseplay serves {served.engine.info.model} to OpenAI's clients under /v1; its routes: /openapi.json\n"
        )

    app.add_api_route("/{path:path}", refuse_unknown, methods=list(METHODS), include_in_schema=False)
    return app


def add_program_routes(
    app: FastAPI, served: Served, monitor: Monitor, names: Sequence[str] = (), traces: Traces | None = None
) -> None:
    """Add ``/metrics``, vLLM's routes of an engine, and everything below ``/v1``."""
    for router in (metrics_router(monitor), _engine_router(served, ModelNames(names))):
        refuse_other_methods(router)
        app.include_router(router)
    app.include_router(runtime_config_router(served))
    app.include_router(api_router(served, ModelNames(names), traces))


def _engine_router(served: Served, names: ModelNames) -> APIRouter:
    """Returns routes that vLLM has too, outside ``/v1``: those in ``OF_ENGINE``."""
    router = APIRouter(route_class=OpenAIRoute)

    @router.post("/reset_prefix_cache")
    def reset() -> Response:
        """Clear the prefix cache, for example between a benchmark's runs; an empty reply. Running requests keep their blocks."""
        served.engine.clear_cache()
        return Response()

    @router.post("/tokenize")
    async def tokens(body: TokenizeBody) -> dict[str, object]:
        """The token ids of a text, or of a chat with the model's template."""
        names.check(served.engine, body.model)
        return await served.submissions.run(tokenize, served.engine, body)

    @router.post("/detokenize")
    async def text(body: DetokenizeBody) -> dict[str, str]:
        """The text of token ids."""
        names.check(served.engine, body.model)
        return await served.submissions.run(detokenize, served.engine, body)

    @router.get("/load")
    def load() -> dict[str, int]:
        """How many requests wait or run."""
        return {"server_load": served.engine.num_unfinished}

    @router.get("/tokenizer_info")
    def info() -> dict[str, object]:
        """The tokenizer's class, chat template and named tokens."""
        return tokenizer_info(served.engine)

    @router.get("/version")
    def version() -> dict[str, str]:
        return {"version": roseplay.__version__}

    return router


def add_gates(
    app: FastAPI, hosts: Iterable[str], key: str | None, drain: Drain, monitor: Monitor | None, origins: Collection[str]
) -> None:
    """Add the checks in front of all routes, mounted ones included. Call this after adding other middleware."""
    app.add_middleware(DrainGate, drain=drain)  # the last one added runs first
    if key is not None:
        app.add_middleware(KeyGate, key=key)
    if monitor is not None:
        app.add_middleware(ReplyCounter, monitor=monitor)
    app.add_middleware(Guard, hosts=set(hosts), origins=origins)
