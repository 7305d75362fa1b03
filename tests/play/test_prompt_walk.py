"""The way of a prompt and of a knob through the page's modules: each is entered once, and requests have one home."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.play.conftest import serving
from tests.play.fake_engine import FakeEngine
from tests.waiting import wait_until

HOME = "roseplay.play.requests"


def modules_on_the_way() -> list[str]:
    """Returns the product's modules that lead to this call, outermost first, each run of frames in one module once."""
    frame, names = sys._getframe(), list[str]()
    while frame is not None:
        names.append(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return [name for name, _ in itertools.groupby(reversed(names)) if name.startswith("roseplay.")]


class WatchedEngine(FakeEngine):
    """Records the way of each call."""

    def __init__(self) -> None:
        super().__init__(run=True, step_s=0.002)
        self.walks: list[list[str]] = []

    def submit(self, *args: Any, **named: Any) -> Any:
        self.walks.append(modules_on_the_way())
        return super().submit(*args, **named)

    def set_knobs(self, **changes: Any) -> Any:
        self.walks.append(modules_on_the_way())
        return super().set_knobs(**changes)


@pytest.fixture(scope="module")
def live_engine() -> WatchedEngine:
    return WatchedEngine()


@pytest.fixture(scope="module")
def address(live_engine: WatchedEngine) -> Iterator[str]:
    with serving(live_engine) as address:
        yield address
    live_engine.close()


@pytest.mark.parametrize(
    "send",
    [
        pytest.param(lambda call: call("/submit", "Hi", 0, tab="walking-tab"), id="the prompt bar"),
        pytest.param(lambda call: call("/submit", "Hi"), id="a program"),
        pytest.param(lambda call: call("/chat", "Hi", 4), id="a chat of a program"),
        pytest.param(lambda call: call("/burst", 2, tab="walking-tab"), id="a burst"),
    ],
)
def test_a_prompt_enters_each_module_once(call: Any, live_engine: WatchedEngine, send: Any) -> None:
    live_engine.walks.clear()
    send(call)
    for walk in wait_until(lambda: list(live_engine.walks)):
        assert len(set(walk)) == len(walk) >= 2, walk
        assert walk[-1] == HOME, walk


def test_a_knob_enters_each_module_once(call: Callable[..., Any], live_engine: WatchedEngine) -> None:
    live_engine.walks.clear()
    call("/set_knobs", {"max_batch_size": 7})
    (walk,) = live_engine.walks
    assert walk == ["roseplay.play.web.api", "roseplay.play.playground"]


def test_a_prompt_of_the_programs_api_goes_straight_to_the_engine(address: str, live_engine: WatchedEngine) -> None:
    live_engine.walks.clear()
    body = {"model": "fake-chat", "prompt": [1, 2, 3], "max_tokens": 2}
    reply = httpx.post(f"{address}/v1/completions", json=body, timeout=20)
    assert reply.status_code == 200, reply.text
    (walk,) = live_engine.walks
    assert len(set(walk)) == len(walk), walk
    assert not [name for name in walk if name.startswith("roseplay.play")], walk
