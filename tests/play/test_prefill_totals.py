"""What all prompts together have cost and saved, counted exactly, whatever happens to the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from roseplay import Engine
from roseplay.config import SamplingParams
from roseplay.engine.records import EntryRecord
from roseplay.play.playground import Playground
from roseplay.recording.request_registry import RequestRegistry, TrackedRequest
from tests.play.conftest import poll
from tests.play.fake_engine import FakeEngine
from tests.waiting import wait_until

N = 100
PROMPT = [7 + i % 50 for i in range(N)]
Run = Callable[..., dict[str, int]]


def totals(playground: Playground) -> dict[str, int]:
    """The totals that the page is told, once they are due."""

    def told() -> Any:
        playground.tick()
        return (poll(playground)["snapshot"]["stats"] or {}).get("in_all")

    return wait_until(lambda: (now := told()) == playground.requests.registry.totals.figures() and now)


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs prompts that arrive together on an engine with ``blocks`` blocks; returns the totals sent to the page."""
    engines: dict[int, tuple[Engine, Playground]] = {}

    def run(*prompts: list[int], blocks: int = 200, tokens: int = 2) -> dict[str, int]:
        if blocks not in engines:
            engine = Engine("tiny-chat", num_blocks=blocks, worker="thread")
            engines[blocks] = engine, Playground(engine)
        engine, playground = engines[blocks]
        engine.pause()
        params = SamplingParams(max_new_tokens=tokens, ignore_eos=True)
        streams = [engine.submit(prompt, params) for prompt in prompts]
        engine.resume()
        for stream in streams:
            stream.result(timeout=60)
        engine.inspect_block(1)  # handled between steps, so the last step has been published
        run.preempted = sum(stream.metrics.num_preemptions for stream in streams)
        return totals(playground)

    yield run
    for engine, _ in engines.values():
        engine.close()


def test_equal_prompts_and_a_repeat(run: Run) -> None:
    first = {"requests": 4, "prompt_tokens": 4 * N, "computed": N, "saved": 3 * N}
    assert run(*[PROMPT] * 4) == {**first, "cached": 0, "shared": 3 * N, "blocks_saved": 3 * (N // 16)}
    again = run(PROMPT)
    assert again["computed"] + again["saved"] == again["prompt_tokens"] == 5 * N
    assert again["computed"] - N <= 1, "at most its last token, for the logits"
    assert again["cached"] == again["saved"] - 3 * N
    assert (again["shared"], again["blocks_saved"]) == (3 * N, 4 * (N // 16))


def test_nothing_in_common_saves_nothing(run: Run) -> None:
    told = run([5] * N, [6] * N)
    assert told == {"requests": 2, "prompt_tokens": 2 * N, "computed": 2 * N, "saved": 0, "blocks_saved": 0, "cached": 0, "shared": 0}  # fmt: skip


def test_a_preempted_request_saves_nothing_by_coming_back(run: Run) -> None:
    told = run(*[[10 + n] * 40 for n in range(4)], blocks=16, tokens=60)
    assert run.preempted > 0
    assert told["computed"] == told["prompt_tokens"] == 160
    assert told["saved"] == 0


def test_a_prompt_that_begins_again_is_counted_once() -> None:
    engine = FakeEngine()
    registry = RequestRegistry(16)
    tracked = TrackedRequest(engine.submit(PROMPT))
    with registry.submitting() as enter:
        enter(tracked)

    def step(computed: int, cached: int, shared: int) -> tuple[int, int, int]:
        registry.progress(EntryRecord(tracked.request_id, 0, 0, computed, N + 8, cached, shared))
        return registry.totals.computed, registry.totals.cached, registry.totals.shared

    assert step(48, 32, 0) == (16, 32, 0)
    assert step(80, 32, 0) == (48, 32, 0)
    assert step(16, 0, 0) == (48, 32, 0), "it starts over"
    assert step(64, 0, 0) == (48, 32, 0)
    assert step(108, 0, 0) == (68, 32, 0), "recomputed answer tokens do not count as prompt tokens"
    assert registry.totals.blocks_saved == 2


def test_steps_told_before_the_request_is_known() -> None:
    with Engine("tiny-chat", num_blocks=64, worker="thread") as engine:
        playground = Playground(engine)
        engine.submit(PROMPT, SamplingParams(max_new_tokens=1)).result(timeout=60)
        with playground.requests.registry.submitting():
            playground.tick()  # belongs to no known request yet
        told = totals(playground)
    assert (told["requests"], told["prompt_tokens"], told["computed"]) == (1, N, N)
