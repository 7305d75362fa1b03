"""The routes below ``/v1``: models, completions and chats, as OpenAI's clients expect them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Scope

from roseplay.core.request import FinishReason
from roseplay.engine.engine_like import EngineLike
from roseplay.serve.admission import submits
from roseplay.serve.answers import Answer
from roseplay.serve.bodies import BatchBody, ChatBody, CompletionBody, Usage
from roseplay.serve.errors import METHODS, PREFIX, OpenAIRoute, refuse_other_methods, refuse_unknown, under_their_name
from roseplay.serve.model_names import ModelNames
from roseplay.serve.monitor import broke_off
from roseplay.serve.served import Served
from roseplay.serve.submitting import Prepared, cancel_all, prepare, repeated_texts, submit_all
from roseplay.settings import SettingError

if TYPE_CHECKING:
    from roseplay.serve.traces import Traces  # needs an extra


def api_router(served: Served, names: ModelNames, traces: Traces | None = None) -> APIRouter:
    """Returns the routes of an engine; ``traces`` follows each accepted request."""
    router = APIRouter(prefix=PREFIX, route_class=OpenAIRoute)

    @router.get("/models")
    def models() -> dict[str, object]:
        engine = served.engine
        return {"object": "list", "data": [_model(engine, name) for name in names.listed(engine)]}

    @router.get("/models/{name:path}")
    def model(name: str) -> dict[str, object]:
        names.check(served.engine, name)
        return _model(served.engine, name)

    @router.post("/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        body.model = names.check(served.engine, body.model)
        return await _answer(served, body, request, traces)

    @router.post("/chat/completions")
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        body.model = names.check(served.engine, body.model)
        return await _answer(served, body, request, traces)

    @router.post("/chat/completions/batch")
    async def batch(body: BatchBody, request: Request) -> Response:
        body.model = names.check(served.engine, body.model)
        return await _answer(served, body, request, traces)

    refuse_other_methods(router)

    @router.api_route("/{path:path}", methods=list(METHODS), include_in_schema=False)
    def unknown(path: str, request: Request) -> Response:
        return refuse_unknown(f"v1/{path}", request)

    return router


def _model(engine: EngineLike, name: str) -> dict[str, object]:
    about = {"id": name, "object": "model", "created": 0, "owned_by": "roseplay"}
    return {**about, "max_model_len": engine.info.max_model_len}


async def _answer(served: Served, body: CompletionBody | ChatBody, request: Request, traces: Traces | None) -> Response:
    engine = served.engine
    field, structure = body.structure
    requests = await served.submissions.run(prepare, engine, body) if structure is not None else None
    if requests is not None:
        try:
            await served.submissions.check_grammars(engine, requests[0].params)
        except SettingError as error:
            raise under_their_name(error, {error.name: field}) from None

    def submit() -> Answer:
        answer = _submitted(engine, body, requests or prepare(engine, body), request.scope)
        if traces is not None:
            traces.follow(answer, request.headers)
        return answer

    answer = await served.submissions.ask(submit, lambda answer: cancel_all(answer.streams))
    if body.stream:
        return StreamingResponse(_until_left(answer, body.usage, request.scope), media_type="text/event-stream")
    try:
        return Response(await answer.whole(), media_type="application/json")
    finally:
        cancel_all(answer.streams)


def _submitted(engine: EngineLike, body: CompletionBody | ChatBody, requests: list[Prepared], scope: Scope) -> Answer:
    repeated = repeated_texts(engine, body, requests)
    submits(scope)
    return Answer(
        submit_all(engine, requests, body.n),
        body.model or engine.info.model,
        isinstance(body, ChatBody),
        body.n,
        engine.tokenizer,
        repeated,
        prompt_only=isinstance(body, CompletionBody) and body.prompt_only,
        shows_ids=body.return_token_ids,
        ids_as_texts=body.return_tokens_as_token_ids,
        prompt_logprobs=body.prompt_logprobs,
    )


async def _until_left(answer: Answer, usage: Usage, scope: Scope) -> AsyncIterator[bytes]:
    """Yields the answer's events. When the client disconnects, this generator is closed and aborts the requests."""
    try:
        async with aclosing(answer.events(usage)) as events:
            async for event in events:
                yield event
    finally:
        if any(stream.finish_reason in (FinishReason.ERROR, FinishReason.ABORT) for stream in answer.streams):
            broke_off(scope)
        cancel_all(answer.streams)
