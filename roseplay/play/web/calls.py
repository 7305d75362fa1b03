"""Shared by the page's endpoints and events: refusals as errors, shown to the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import gradio as gr
from gradio.context import LocalContext

from roseplay.engine.errors import EngineBusyError, EngineError
from roseplay.formats.text import one_line
from roseplay.play.page_host import PageHost
from roseplay.play.playground import Playground
from roseplay.play.web.gradio_gate import failed_with
from roseplay.serve.submissions import Submissions

# For events of the page that are not endpoints: they only change what the page shows.
EVENT: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


class Endpoints:
    def __init__(self, host: PageHost) -> None:
        self._host = host

    @property
    def playground(self) -> Playground:
        return self._host.playground

    @property
    def submissions(self) -> Submissions:
        return self._host.submissions


def refusal(error: Exception) -> gr.Error:
    """Returns the error as a message for the caller, and sets the status of the reply to a plain POST."""
    failed_with(429 if isinstance(error, EngineBusyError) else 503 if isinstance(error, EngineError) else 422)
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
    except (ValueError, EngineBusyError, EngineError, TypeError, OverflowError) as error:
        raise refusal(error) from None


def _message(line: str) -> str:
    """Returns the line in the caller's format: the page renders messages as HTML, programs read text."""
    return escape(line, quote=False) if _from_page() else line


def _from_page() -> bool:
    """Whether the current call comes from Gradio's page, which sets a header."""
    request = LocalContext.request.get(None)
    return request is not None and request.headers.get("x-gradio-user") == "app"
