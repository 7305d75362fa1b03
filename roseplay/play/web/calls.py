"""What endpoints and page events share: refusals as errors, and waiting while a client waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import gradio as gr
from gradio.context import LocalContext

from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.formats.text import one_line
from roseplay.play.playground import Playground
from roseplay.play.web.gradio_gate import failed_with
from roseplay.serve.submissions import Submissions

LOOK_S = 0.5  # how often /chat sends an update and checks whether the client is still connected
# For events of the page. They are queued, since only there an error becomes a message instead of a failed request.
EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_REFUSALS = (ValueError, EngineBusyError, EngineError)


class Endpoints:
    def __init__(self, playground: Playground) -> None:
        self.playground = playground

    @property
    def submissions(self) -> Submissions:
        return self.playground.submissions


def refusal(error: Exception) -> gr.Error:
    """Returns the error as a message for the user, and sets the status with which a plain POST is answered."""
    status = 429 if isinstance(error, EngineBusyError) else 503 if isinstance(error, EngineError) else 422
    failed_with(status)
    return gr.Error(one_line(error), print_exception=False, title="Not possible")


@contextmanager
def refusals_as_errors() -> Iterator[None]:
    """Turns what the engine or the page refuses into an error of one line for the caller."""
    try:
        yield
    except (*_REFUSALS, TypeError, OverflowError) as error:
        raise refusal(error) from None


@contextmanager
def refusals_on_page() -> Iterator[None]:
    """The same for an event of the page, where Gradio renders the message as HTML."""
    try:
        yield
    except _REFUSALS as error:
        failure = refusal(error)
        failure.message = escape(str(error), quote=False)
        raise failure from None


async def until(
    over: Callable[[], Awaitable[bool]], request: gr.Request | None, update: Callable[[], Any]
) -> AsyncIterator[Any]:
    """Wait until ``over`` returns true or the client is gone.

    Yields an ``update`` after each look, if the call came through Gradio's queue.
    """
    queued = LocalContext.event_id.get(None) is not None
    while not await over():
        if queued:
            yield update()  # if the client has gone, Gradio closes the generator here
        elif request is not None and await request.request.is_disconnected():
            return  # a plain POST to /run/ takes the first value only, so nothing is yielded to it before the result
