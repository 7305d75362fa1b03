"""A pool of a few blocks, thousands of waiting requests, hundreds of aborts, and knobs that change all the time.

Whatever happens to the others, a request's tokens are those that it gets alone (or differ first where the model's two best
logits nearly tie), and afterwards the engine is healthy and all blocks are back.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from roseplay import Engine, Knobs, SamplingParams
from roseplay.config import POLICIES
from roseplay.engine.telemetry import StepEvent
from tests.engine.greedy import assert_same_until_a_tie
from tests.model.families import LENGTH, VOCABULARY
from tests.waiting import wait_until

BLOCK_SIZE = 4
LEAST_BLOCKS = LENGTH // BLOCK_SIZE + 1  # one request of the whole context, and the block that is never handed out
CHANGES = {
    "max_batch_size": (1, 2, 5, 32, 4096),
    "prefill_max_tokens": (None, 1, 3, 4, 17, 64),
    "prefill_max_batch_size": (None, 1, 2),
    "step_max_tokens": (None, 1, 7, 30),
    "chunked_prefill": (True, False),
    "prefix_cache": (True, False),
    "same_step_sharing": (True, False),
    "eviction_policy": ("lru", "lfu"),
    "pinned_blocks": (0, 1, 3),
    "preemption_mode": ("recompute", "swap"),
    "batched_append": (True, False),
    "scheduling_policy": POLICIES,
    "max_overtakes": (None, 1, 64),
    "prefill_interval": (0, 2),
    "speculative_tokens": (0, 3, 64),
    "lookup_ngram": (1, 3),
}


@dataclass(frozen=True)
class Case:
    """A request, and the tokens that an otherwise idle engine returns for it."""

    prompt: tuple[int, ...]
    new_tokens: int
    expected: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(max_new_tokens=self.new_tokens, ignore_eos=True)


def requests(seed: int) -> list[tuple[tuple[int, ...], int]]:
    """Prompts of one token, around blocks' edges, of the whole context but one token; answers of one token and as long as can be."""
    chance = random.Random(seed)
    head = [chance.randrange(3, VOCABULARY) for _ in range(LENGTH)]

    def tokens(length: int, shared: int = 0) -> tuple[int, ...]:
        return (*head[:shared], *(chance.randrange(3, VOCABULARY) for _ in range(length - shared)))

    made = [(tokens(1), LENGTH - 1), (tokens(LENGTH - 1), 1), (tokens(LENGTH - 2, 40), 2), (tokens(30, 20), 34)]
    lengths = [(1, 0), (3, 0), (4, 0), (5, 4), (8, 8), (9, 8), (9, 8), (12, 12), (13, 12), (16, 12), (21, 16)]
    made += [(tokens(length, shared), new) for length, shared in lengths for new in (1, 2, 5)]
    # Answers that outgrow the blocks they were admitted with: a few such requests together must preempt each other.
    return made + [(tokens(length), 24) for length in (2, 3, 7)]


@pytest.fixture(scope="module")
def reference(tiny_llama: Any) -> Any:
    return copy.deepcopy(tiny_llama)


@pytest.fixture(scope="module")
def cases(tiny_llama: Any) -> list[Case]:
    """Each request with the tokens that it gets alone, one after the other, with an empty cache."""
    found = []
    with Engine(tiny_llama, block_size=BLOCK_SIZE, num_blocks=100, prefix_cache=False) as engine:
        for prompt, new in requests(0):
            case = Case(prompt, new)
            stream = engine.submit(list(prompt), case.params).result(60)
            assert len(stream.token_ids) == new
            found.append(Case(prompt, new, tuple(stream.token_ids)))
    return found


class Crowd:
    """Requests drawn at random from ``cases``, and what has become of them."""

    def __init__(self, engine: Engine, cases: list[Case], seed: int) -> None:
        self.engine, self.cases, self.chance = engine, cases, random.Random(seed)
        self.sent: list[tuple[Case, Any]] = []

    def submit(self, count: int) -> None:
        # Mostly short ones: a request of the whole context needs the pool for itself.
        weights = [1 if len(case.prompt) + case.new_tokens > 40 else 12 for case in self.cases]
        for case in self.chance.choices(self.cases, weights, k=count):
            self.sent.append((case, self.engine.submit(list(case.prompt), case.params)))

    def check(self, model: Any, timeout: float) -> dict[str, int]:
        """Wait for all; returns how many ended for each reason."""
        ends: dict[str, int] = {}
        for case, stream in self.sent:
            stream.result(timeout)
            assert stream.error is None, stream.error
            ends[stream.finish_reason] = ends.get(stream.finish_reason, 0) + 1
            if stream.finish_reason == "length":
                assert len(stream.token_ids) == case.new_tokens
            if stream.token_ids != list(case.expected[: len(stream.token_ids)]):
                theirs = list(case.expected[: len(stream.token_ids)])
                assert_same_until_a_tie(model, list(case.prompt), stream.token_ids, theirs)
        return ends


@contextlib.contextmanager
def repeatedly(work: Any, every_s: float) -> Iterator[list[int]]:
    """Call ``work`` repeatedly in another thread. Yields the count; an exception fails the test at the end."""
    stop, count, failures = threading.Event(), [0], []

    def run() -> None:
        try:
            while not stop.wait(every_s):
                work()
                count[0] += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join(30)
    assert not failures, failures


def steps(engine: Engine) -> list[Any]:
    return [event.record for event in engine.telemetry.since(0)[1] if isinstance(event, StepEvent)]


def assert_healthy_and_empty(engine: Engine, cases: list[Case]) -> None:
    """The engine responds, and every block has been freed."""
    engine.set_knobs(**Knobs().to_dict())
    usable = engine.info.num_blocks - 1
    wait_until(lambda: (last := steps(engine)[-1]).blocks_free + last.blocks_cached == usable)
    assert (steps(engine)[-1].running, steps(engine)[-1].waiting) == (0, 0)
    engine.clear_cache()
    wait_until(lambda: steps(engine)[-1].blocks_free == usable)
    health = engine.health(10)
    assert health.ok, health.detail
    for case in cases[:3]:
        assert engine.submit(list(case.prompt), case.params).result(60).finish_reason == "length"


def crowded(engine: Engine, cases: list[Case], model: Any, *, waves: int, seed: int, timeout: float = 100) -> None:
    """Thousands wait behind a pool of a few blocks; some of them are aborted by the hundred, and knobs change all the time."""
    crowd, chance = Crowd(engine, cases, seed), random.Random(seed + 1)

    def turn_a_knob() -> None:
        name = chance.choice(list(CHANGES))
        engine.set_knobs(**{name: chance.choice(CHANGES[name])})

    def abort_some() -> None:
        for _, stream in random.sample(crowd.sent, min(100, len(crowd.sent))):
            stream.cancel()

    with repeatedly(turn_a_knob, 0.01) as turned:
        for _ in range(waves):
            engine.pause()
            crowd.submit(1000)
            engine.resume()
            aborters = [threading.Thread(target=abort_some) for _ in range(4)]
            for thread in aborters:
                thread.start()
            for thread in aborters:
                thread.join(60)
        ends = crowd.check(model, timeout)
    assert set(ends) == {"length", "abort"}
    assert min(ends.values()) > 100, ends
    assert turned[0] > 20
    print(f"{len(crowd.sent)} requests: {ends}, {turned[0]} changes of knobs, {len(steps(engine))} steps kept")


@pytest.mark.timeout(200)
def test_a_crowd_at_a_pool_of_a_few_blocks(tiny_llama: Any, cases: list[Case], reference: Any) -> None:
    settings = {"block_size": BLOCK_SIZE, "num_blocks": LEAST_BLOCKS + 4, "max_waiting": 10_000}
    with Engine(tiny_llama, telemetry_steps=100_000, **settings) as engine:
        crowded(engine, cases, reference, waves=2, seed=1)
        assert max(step.waiting for step in steps(engine)) > 900
        assert sum(len(step.preempted) for step in steps(engine)) > 0
        assert_healthy_and_empty(engine, cases)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("worker", ["thread", "process"])
@pytest.mark.parametrize(("spare", "seed"), [(0, 2), (1, 3), (8, 4), (40, 5)])
def test_larger_crowds(
    tiny_llama: Any, cases: list[Case], reference: Any, tmp_path: Any, worker: str, spare: int, seed: int
) -> None:
    tiny_llama.save_pretrained(tmp_path)
    model = tiny_llama if worker == "thread" else str(tmp_path)
    settings = {"block_size": BLOCK_SIZE, "num_blocks": LEAST_BLOCKS + spare, "max_waiting": 20_000}
    with Engine(model, worker=worker, **settings) as engine:
        crowded(engine, cases, reference, waves=8, seed=seed, timeout=1000)
        assert_healthy_and_empty(engine, cases)


def test_requests_of_every_extreme_at_once_in_the_smallest_pool(
    tiny_llama: Any, cases: list[Case], reference: Any
) -> None:
    """Each fits alone, hardly two do together: they wait for each other, are preempted, and answer as they do alone."""
    with Engine(tiny_llama, block_size=BLOCK_SIZE, num_blocks=LEAST_BLOCKS, max_batch_size=64) as engine:
        for order in itertools.islice(itertools.permutations(cases[:4]), 0, 24, 5):
            streams = [engine.submit(list(case.prompt), case.params) for case in order]
            for case, stream in zip(order, streams, strict=True):
                assert stream.result(60).finish_reason == "length"
                assert_same_until_a_tie(reference, list(case.prompt), stream.token_ids, list(case.expected))
        assert_healthy_and_empty(engine, cases)
