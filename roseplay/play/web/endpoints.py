"""How endpoints are called: by programs through Gradio, and by the page's scripts with a plain POST."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import gradio as gr
from fastapi import APIRouter, HTTPException, Request
from pydantic import ValidationError, validate_call
from starlette.concurrency import run_in_threadpool

from roseplay.formats.invalid import first_fault
from roseplay.formats.json_text import json_object, strict_json
from roseplay.formats.text import shown
from roseplay.play.page_host import PageHost
from roseplay.play.playground import Playground
from roseplay.play.web.calls import NO_STORE, http_refusals, refusals_as_errors
from roseplay.serve.submissions import Submissions

Endpoint = Callable[..., Awaitable[Any]]


class Endpoints:
    """Endpoints, as methods with the decorator ``endpoint``."""

    def __init__(self, host: PageHost) -> None:
        self._host = host

    @property
    def playground(self) -> Playground:
        return self._host.playground

    @property
    def submissions(self) -> Submissions:
        return self._host.submissions


def endpoint(method: Any) -> Any:
    """Make a method an endpoint: a coroutine function that checks its named arguments against their types.

    It raises ``ValueError`` with one line for the first wrong argument.
    """
    checked = validate_call(config={"validate_default": True})(method)
    is_async, names = inspect.iscoroutinefunction(method), list(inspect.signature(method).parameters)[1:]

    @wraps(method)
    async def called(self: Endpoints, /, **arguments: Any) -> Any:
        if unknown := [name for name in arguments if name not in names]:
            raise ValueError(f"{shown(unknown[0])} is not known: use {', '.join(names)}")
        try:
            return await (checked(self, **arguments) if is_async else run_in_threadpool(checked, self, **arguments))
        except ValidationError as error:
            raise ValueError(first_fault(error)) from None

    return called


def add_events(endpoints: Mapping[Endpoint, str]) -> None:
    """Add endpoints, with their descriptions, to the page that is being built."""
    for endpoint, about in endpoints.items():
        gr.api(_event(endpoint), api_description=about, concurrency_limit=None)


def _event(endpoint: Endpoint) -> Endpoint:
    """Returns an endpoint for Gradio, which passes arguments in their order."""
    signature = inspect.signature(endpoint)

    @wraps(endpoint)
    async def event(*values: Any) -> Any:
        with refusals_as_errors():
            return await endpoint(**dict(zip(signature.parameters, values, strict=False)))

    vars(event)["__signature__"] = (
        signature  # otherwise that of the function, with ``self``, as declared by its decorators
    )
    return event


def call_router(endpoints: Sequence[Endpoint]) -> APIRouter:
    """Returns ``POST /ui/call/NAME``, which calls an endpoint: the body has its arguments, the reply its ``result``."""
    router = APIRouter(prefix="/ui/call", dependencies=[NO_STORE])
    named = {endpoint.__name__: endpoint for endpoint in endpoints}

    @router.post("/{name}")
    async def call(name: str, request: Request) -> dict[str, object]:
        if name not in named:
            raise HTTPException(404, f"there is no endpoint {shown(name)}: use {', '.join(named)}")
        body = await request.body()
        with http_refusals():
            return {"result": await named[name](**json_object(strict_json(body), "the arguments", '{"lane": 1}'))}

    return router
