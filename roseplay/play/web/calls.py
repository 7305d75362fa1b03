"""Shared by the page's endpoints, events and routes: refusals, each in one line for the caller."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from html import escape
from typing import Any

import gradio as gr
from fastapi import Depends, HTTPException, Response
from gradio.context import LocalContext
from pydantic import ValidationError, validate_call

from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.formats.invalid import first_fault
from roseplay.formats.text import one_line
from roseplay.lab.lab import LabBusyError
from roseplay.play.engine_host import LoadBusyError, NotOfferedError
from roseplay.play.page_host import PageHost
from roseplay.play.playground import Playground
from roseplay.play.web.gradio_gate import failed_with
from roseplay.serve.submissions import Submissions

# For events of the page that are not endpoints: they only change what the page shows.
EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

# Of refusals; what cannot be, or is not there, has the status that its route chooses.
_STATUSES: dict[type[Exception], int] = {
    EngineBusyError: 429,
    EngineError: 503,
    TimeoutError: 503,
    LoadBusyError: 409,
    LabBusyError: 409,
    NotOfferedError: 403,
}
REFUSALS: tuple[type[Exception], ...] = (*_STATUSES, ValueError, TypeError, OverflowError, OSError)


def _no_store(response: Response) -> None:
    response.headers["Cache-Control"] = "no-store"


NO_STORE = Depends(_no_store)  # of a router whose replies change


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
    """Check the arguments of an endpoint against their types, and refuse what is wrong with one line for the caller."""
    checked = validate_call(config={"validate_default": True})(method)
    names = list(inspect.signature(method).parameters)

    def called(*given: Any, **named: Any) -> Any:
        with refusals_as_errors():
            return checked(given[0], **dict(zip(names[1:], given[1:], strict=False)), **named)

    async def awaited(*given: Any, **named: Any) -> Any:
        with refusals_as_errors():
            return await checked(given[0], **dict(zip(names[1:], given[1:], strict=False)), **named)

    return wraps(method)(awaited if inspect.iscoroutinefunction(method) else called)


def _status_of(error: Exception, otherwise: int) -> int:
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            return status
    return otherwise


@contextmanager
def http_refusals(otherwise: int = 422) -> Iterator[None]:
    """Turn refusals by the engine or the page into HTTP errors of one line.

    Args:
        otherwise: the status for what was asked wrongly.
    """
    try:
        yield
    except REFUSALS as error:
        raise HTTPException(_status_of(error, otherwise), one_line(error)) from None


def refusal(error: Exception) -> gr.Error:
    """Returns the error as a message for the caller, and sets the status of the reply to a plain POST."""
    failed_with(_status_of(error, 422))
    return gr.Error(_message(one_line(error)), print_exception=False, title="Not possible")


def warn(line: str) -> None:
    """Show a line on the page that called; does nothing for programs, which read the result instead."""
    if _from_page():
        gr.Warning(_message(line))


@contextmanager
def refusals_as_errors() -> Iterator[None]:
    """Turn refusals by the engine or the page into an error of one line for the caller."""
    try:
        yield
    except ValidationError as error:
        raise refusal(ValueError(first_fault(error))) from None
    except REFUSALS as error:
        raise refusal(error) from None


def _message(line: str) -> str:
    """Returns the line in the caller's format: the page renders messages as HTML, programs read text."""
    return escape(line, quote=False) if _from_page() else line


def _from_page() -> bool:
    """Whether the current call comes from Gradio's page, which sets a header."""
    request = LocalContext.request.get(None)
    return request is not None and request.headers.get("x-gradio-user") == "app"
