"""What the named endpoints share: refusals as errors, and waiting for as long as somebody is there to be answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
from gradio.context import LocalContext

from roseplay.lab.lab import LabBusyError
from roseplay.play.playground import Playground
from roseplay.play.traffic import REFUSALS, refused

LOOK_S = 0.5  # how often /chat and /lab send what is new, and find out whether the client is still there


class Endpoints:
    def __init__(self, playground: Playground) -> None:
        self.playground = playground
        self.submissions = playground.submissions


@contextmanager
def refusals_as_errors() -> Iterator[None]:
    """What the engine or the page refuses becomes an error of one line for the caller."""
    try:
        yield
    except LabBusyError as error:
        raise refused(error, 409) from None
    except (*REFUSALS, TypeError, OverflowError) as error:
        raise refused(error) from None


async def until(
    over: Callable[[], Awaitable[bool]], request: gr.Request | None, news: Callable[[], Any]
) -> AsyncIterator[Any]:
    """Ask whether it is ``over`` until it is, or until nobody waits for it; gives ``news`` meanwhile to who can take some."""
    queued = LocalContext.event_id.get(None) is not None
    while not await over():
        if queued:
            yield news()  # Gradio closes a generator whose client has gone, when it next gives something
        elif request is not None and await request.request.is_disconnected():
            return  # a plain POST to /run/ takes the first thing that comes; but its connection tells when it is closed
