"""Prompts with equal prefixes are routed to the replica that has these in its cache."""

from __future__ import annotations

import asyncio
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from roseplay.config import SamplingParams
from roseplay.engine.client import Engine
from tests.extras.ray.suite.conftest import KNOBS, MODEL

pytest.importorskip("roseplay.extras.ray.environment", reason="Ray is not installed", exc_type=ImportError)
pytestmark = pytest.mark.slow

HEADS, QUESTIONS, HEAD_TOKENS = 24, 3, 256
BLOCKS = 1 + 220  # of a replica: for half of the prefixes, and the running requests


def test_a_request_that_comes_again_goes_to_a_replica_that_has_not_had_it() -> None:
    from roseplay.extras.ray.router import PrefixRouter

    router: Any = object.__new__(PrefixRouter)
    router.initialize_state()
    router._replica_queue_len_cache = SimpleNamespace(get=lambda replica_id: 0)
    replicas: Any = [SimpleNamespace(replica_id=name, routing_stats={}) for name in "abc"]

    def send(request_id: int, prompt: range = range(64)) -> str:
        call: Any = SimpleNamespace(args=[prompt, None, None, "ingress", request_id])
        [[best], *_] = asyncio.run(router.choose_replicas(replicas, call))
        router.on_request_routed(call, best.replica_id, None)
        return str(best.replica_id)

    assert len({send(1), send(1), send(1)}) == 3
    assert send(1) in "abc"  # all have had it
    assert send(2, range(100, 164)) == send(3, range(100, 164))  # others go where their prefix is


def traffic() -> list[list[int]]:
    """Prompts with one of several prefixes and a question of their own, in random order."""
    rng = random.Random(7)
    heads = [[rng.randrange(10, 2000) for _ in range(HEAD_TOKENS)] for _ in range(HEADS)]
    prompts = [[*head, *(rng.randrange(10, 2000) for _ in range(12))] for head in heads for _ in range(QUESTIONS)]
    rng.shuffle(prompts)
    return prompts


def hit_rate(engine: Any) -> float:
    """The fraction of prompt tokens that were not computed, with two requests at a time."""
    streams = []
    for prompt in traffic():
        streams.append(engine.submit(prompt, SamplingParams(max_new_tokens=4, ignore_eos=True)))
        if len(streams) > 1:
            streams[-2].result(60)
        time.sleep(0.01)
    found = [stream.result(60).metrics for stream in streams]
    cached = sum(metrics.cached_tokens + metrics.shared_tokens for metrics in found)
    return cached / sum(metrics.prompt_tokens for metrics in found)


def test_hit_rate_of_two_replicas_is_near_that_of_one_engine_with_their_blocks(deployed: Any) -> None:
    with Engine(MODEL, worker="thread", threads=1, num_blocks=2 * BLOCKS - 1, knobs=KNOBS) as engine:
        alone = hit_rate(engine)
    with deployed("prefix", num_blocks=BLOCKS) as engine:
        by_prefix = hit_rate(engine)
    with deployed("turns", num_blocks=BLOCKS, round_robin=True) as engine:
        in_turn = hit_rate(engine)
    print(f"\nhit rate: one engine {alone:.3f}, by prefix {by_prefix:.3f}, in turn {in_turn:.3f}")
    assert by_prefix >= 0.9 * alone
    assert by_prefix >= 2 * in_turn
