"""Shared by the page's endpoints and routes: refusals, each in one line for the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
from fastapi import Depends, HTTPException, Response

from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.formats.text import one_line
from roseplay.play.engine_host import LoadBusyError, NotOfferedError
from roseplay.play.tab import TabBusyError
from roseplay.play.web.gradio_gate import failed_with

# For events of the page: a script of the page is all that they call.
EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

# Of refusals; what cannot be, or is not there, has the status that its route chooses.
_STATUSES: dict[type[Exception], int] = {
    EngineBusyError: 429,
    EngineError: 503,
    TimeoutError: 503,
    LoadBusyError: 409,
    TabBusyError: 409,
    NotOfferedError: 403,
}
REFUSALS: tuple[type[Exception], ...] = (*_STATUSES, ValueError, TypeError, OverflowError, OSError)


def _no_store(response: Response) -> None:
    response.headers["Cache-Control"] = "no-store"


NO_STORE = Depends(_no_store)  # of a router whose replies change


def _status_of(error: Exception, otherwise: int) -> int:
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            return status
    return otherwise


@contextmanager
def http_refusals(otherwise: int = 422) -> Iterator[None]:
    """Turn refusals by the engine or the page into HTTP errors of one line; wrong input gets the status ``otherwise``."""
    try:
        yield
    except REFUSALS as error:
        raise HTTPException(_status_of(error, otherwise), one_line(error)) from None


def refusal(error: Exception) -> gr.Error:
    """Returns the error as a message for the caller, and sets the status of the reply to a plain POST."""
    failed_with(_status_of(error, 422))
    return gr.Error(one_line(error), print_exception=False, title="Not possible")


@contextmanager
def refusals_as_errors() -> Iterator[None]:
    """Turn refusals by the engine or the page into an error of one line for the caller."""
    try:
        yield
    except REFUSALS as error:
        raise refusal(error) from None
