"""Checks that the optimisations used on this machine compute the same as plain torch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from roseplay.config import Knobs, SamplingParams
from roseplay.engine.client import Engine
from roseplay.engine.stream import Stream
from roseplay.own_models import EMBEDDED

# Off, so that torch alone computes every step.
PLAIN = {"pack_weights": False, "fuse_ops": False, "record_steps": False, "attention": "reference"}
# The largest difference of a log-probability from plain torch's that rounding in all layers may explain.
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.25}
_PROMPTS = (5, 40, 300)  # lengths in tokens: computed as decodes, by one kernel, and by several of its pieces
_NEW_TOKENS = 24
BLOCKS = 96  # enough for the answers; a pool of all free memory would take long to allocate
_SEED = 7


@dataclass(frozen=True)
class Check:
    """A comparison of one device's answers in one dtype with those of plain torch."""

    device: str
    dtype: str
    ok: bool  # whether they agree
    difference: float  # the largest difference between log-probabilities of the same token
    compared: int  # number of tokens compared

    def __str__(self) -> str:
        verdict = "same as plain torch" if self.ok else "WRONG: not the same as plain torch"
        return f"{verdict} ({self.compared} tokens, log-probabilities within {self.difference:.1g})"


def check(device: str, dtype: str) -> Check:
    """Compares greedy answers of the embedded model with and without all optimisations; takes a few seconds."""
    return compare(device, dtype, _answers(device, dtype, PLAIN), _answers(device, dtype, {}))


def compare(device: str, dtype: str, plain: Sequence[Stream], fast: Sequence[Stream]) -> Check:
    """Compares answers and log-probabilities up to rounding; an answer only up to a tie between likeliest tokens."""
    tolerance, difference, compared, ok = TOLERANCES[dtype], 0.0, 0, True
    for expected, actual in zip(plain, fast, strict=True):
        for ours, theirs, at in zip(actual.token_ids, expected.token_ids, range(_NEW_TOKENS), strict=False):
            likeliest = dict(expected.logprobs[at].top)
            if ours not in likeliest:
                ok = False
                break
            compared += 1
            difference = max(difference, abs(actual.logprobs[at].logprob - likeliest[ours]))
            if ours != theirs:  # allowed if both are equally likely up to rounding; later tokens differ
                ok = ok and likeliest[theirs] - likeliest[ours] <= tolerance
                break
    return Check(device, dtype, ok and compared > 0 and difference <= tolerance, difference, compared)


def _answers(device: str, dtype: str, settings: dict[str, Any]) -> list[Stream]:
    knobs = Knobs(cuda_graphs=not settings)
    with Engine(EMBEDDED, device=device, dtype=dtype, num_blocks=BLOCKS, knobs=knobs, **settings) as engine:
        return ask(engine)


def ask(engine: Engine) -> list[Stream]:
    """Returns greedy answers to the same prompts every time, of an engine with ``BLOCKS`` blocks of 16 tokens or more."""
    chance = random.Random(_SEED)
    params = SamplingParams(max_new_tokens=_NEW_TOKENS, temperature=0.0, ignore_eos=True, logprobs=5)
    # The embedded model's first ids are special tokens and single characters.
    prompts = [[chance.randrange(100, engine.info.vocab_size) for _ in range(length)] for length in _PROMPTS]
    streams = [engine.submit(prompt, params) for prompt in prompts]
    for stream in streams:
        stream.result()
    return streams
