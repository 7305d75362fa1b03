"""Four clients of one engine and its page, served once without faults and then once for each fault.

Three requests run and one waits. A step has room for two tokens, so that one of the running requests is not in the step
that fails. It is running because its prompt was computed for another request, whose blocks it shares.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.testclient import TestClient

from roseplay import Engine, SamplingParams
from roseplay.engine.stream import Stream
from roseplay.engine.telemetry import StepEvent
from roseplay.model.runner import ModelRunner
from roseplay.play.playground import Playground
from roseplay.play.server import create_app
from roseplay.serve.guard import allowed_hosts
from tests.kernels.emulation import emulate_gpu
from tests.waiting import wait_until

WAIT_S = 60.0  # for any event, as the machine may be busy
SOON_S = 5.0  # for an event that should happen within a second
TOKENS = 20
CLIENTS: dict[str, tuple[Any, SamplingParams]] = {
    "first": ("What is a KV block?", SamplingParams(max_new_tokens=TOKENS, ignore_eos=True)),
    "second": (
        [{"role": "user", "content": "Why?"}],
        SamplingParams(max_new_tokens=TOKENS, ignore_eos=True, temperature=0.8, seed=3, logprobs=2),
    ),
    "third": (
        "What is a KV block?",
        SamplingParams(max_new_tokens=TOKENS, ignore_eos=True, stop=("never said",), repetition_penalty=1.2),
    ),
    "waiting": ("What is a KV cache?", SamplingParams(max_new_tokens=TOKENS // 2, ignore_eos=True)),
}
KNOBS = {"max_batch_size": 3, "step_max_tokens": 2}


@dataclass
class Page:
    """The page of an engine, as a browser requests it."""

    client: TestClient
    playground: Playground

    def snapshot(self) -> dict[str, Any]:
        answer = self.client.get("/ui/delta?since=0")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def outcomes(self) -> dict[int, dict[str, Any]]:
        """What the page says about each request, by id."""
        return dict(self.snapshot()["snapshot"]["requests"])

    def health(self) -> tuple[int, str]:
        answer = self.client.get("/health")
        return answer.status_code, answer.text


@contextlib.contextmanager
def open_page(engine: Engine, **settings: Any) -> Iterator[Page]:
    playground = Playground(engine, **settings)
    app = create_app(playground, allowed_hosts("127.0.0.1"))
    with TestClient(app, base_url="http://127.0.0.1:7860", raise_server_exceptions=False) as client:
        yield Page(client, playground)


def open_engine(*, model: str = "tiny-chat", overlap: bool = False, **settings: Any) -> Engine:
    """The embedded model, with every step run by the model's own forward; with ``overlap``, as on a GPU."""
    if not overlap:
        return Engine(model, num_blocks=200, record_steps=False, **settings)
    with emulate_gpu():
        return Engine(model, num_blocks=200, max_model_len=256, **settings)


class Shared:
    """One engine and page for many faults, which it must outlive."""

    def __init__(self) -> None:
        self._open: dict[bool, tuple[Engine, Page]] = {}
        self._stack = contextlib.ExitStack()

    def get(self, *, overlap: bool = False) -> tuple[Engine, Page]:
        if overlap not in self._open:
            engine = self._stack.enter_context(open_engine(overlap=overlap))
            self._open[overlap] = engine, self._stack.enter_context(open_page(engine))
        return self._open[overlap]

    def discard(self, *, overlap: bool = False) -> None:
        """Stop using an engine: a test that failed may have left something behind."""
        self._open.pop(overlap, None)

    def close(self) -> None:
        """Close all engines; ``get`` opens new ones."""
        self._open.clear()
        self._stack.close()


@dataclass
class Watched:
    """The requests that each step since ``clear`` computed, the newest last."""

    steps: list[list[int]] = field(default_factory=list)


@contextlib.contextmanager
def watched_steps() -> Iterator[Watched]:
    """Record which requests each step in this process computes."""
    launch, watched = ModelRunner.launch, Watched()

    def noting(self: ModelRunner, step: Any) -> Any:
        watched.steps.append([entry.request.request_id for entry in step.entries if entry.num_tokens])
        return launch(self, step)

    ModelRunner.launch = noting  # type: ignore[method-assign]
    try:
        yield watched
    finally:
        ModelRunner.launch = launch  # type: ignore[method-assign]


def begin(engine: Engine, *, listener: Any = None, armed: Callable[[], object] = lambda: None) -> dict[str, Stream]:
    """Send all clients' requests to a paused engine, then let it run."""
    engine.set_knobs(**KNOBS)
    engine.clear_cache()
    engine.pause()
    streams = {
        name: engine.submit(prompt, params, on_update=listener if name == "first" else None)
        for name, (prompt, params) in CLIENTS.items()
    }
    armed()
    with contextlib.suppress(Exception):  # the fault may already have ended the engine
        engine.resume()
    return streams


def tokens(streams: dict[str, Stream]) -> dict[str, list[int]]:
    return {name: stream.token_ids for name, stream in streams.items()}


def expect_right(name: str, stream: Stream, expected: dict[str, list[int]]) -> None:
    assert (stream.finish_reason, stream.error) == ("length", None), f"{name}: {stream} {stream.error}"
    assert stream.token_ids == expected[name], f"{name} got other tokens than without the fault"


def all_blocks_are_back(engine: Engine) -> bool:
    _, events = engine.telemetry.since(0)
    record = next((event.record for event in reversed(events) if isinstance(event, StepEvent)), None)
    return record is not None and (
        record.blocks_active == record.blocks_shared == record.running == record.waiting == 0
        and record.blocks_free + record.blocks_cached == engine.info.num_blocks - 1
    )


def check_goes_on(
    engine: Engine, page: Page, expected: dict[str, list[int]], names: Iterable[str] = CLIENTS, timeout: float = WAIT_S
) -> None:
    """Requests that are sent again get the right tokens, all blocks are freed, and the health is good."""
    for name in names:
        expect_right(name, engine.submit(*CLIENTS[name]).result(timeout), expected)
    wait_until(lambda: all_blocks_are_back(engine), "all blocks are free or cached")
    wait_until(lambda: page.health()[0] == 200, "the health is good")
    assert engine.alive
    assert engine.abort_all() == 0


def check_page_knows(page: Page, streams: Iterable[Stream]) -> None:
    """The page reports how each request ended, and the reason if it failed."""

    def told() -> bool:
        outcomes = page.outcomes()
        return all(
            outcomes.get(stream.request_id, {}).get("reason") == str(stream.finish_reason)
            and outcomes[stream.request_id].get("error") == stream.error
            and outcomes[stream.request_id]["finished"] is not None
            for stream in streams
        )

    wait_until(told, "the page says how each request ended")
