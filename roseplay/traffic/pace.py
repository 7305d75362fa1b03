"""Fits traffic to a model's speed: how fast an engine computes, and how large a burst it answers in a given time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from roseplay.core.info import EngineInfo
from roseplay.traffic.prompts import PromptMix

# Estimated tokens of one repetition of a prompt's body, and of what a chat template adds to a prompt.
BODY_TOKENS, CHAT_TOKENS = 12, 30
# The smallest burst that still shows something: requests, tokens of an answer, repetitions of a long body, tokens of a head.
LEAST_REQUESTS, LEAST_ANSWER, LEAST_REPEATS, LEAST_HEAD = 8, 8, 8, 64
SHRINK, _STEPS = 0.85, 30  # factor from each size tried to the next, and the most sizes tried
SLOW_MOTION = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


@dataclass(frozen=True, slots=True)
class Speed:
    """How long a step takes: ``step_s`` seconds with one token, and ``token_s`` more with each further one."""

    step_s: float
    token_s: float

    @classmethod
    def of(cls, info: EngineInfo) -> Self | None:
        """Returns the speed that an engine measured when it started; ``None`` if it measured none."""
        return cls(info.decode_s, info.prompt_token_s) if info.decode_s and info.prompt_token_s else None

    def step(self, tokens: float) -> float:
        """Returns the seconds of a step with this many tokens."""
        return self.step_s + max(0.0, tokens - 1) * self.token_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A burst's size: the number of requests, how their prompts relate, and the tokens of each answer."""

    requests: int
    answer: int
    mix: PromptMix

    def prompt_tokens(self, *, sharing: bool) -> int:
        """Returns the estimated prompt tokens to compute; with ``sharing``, parts that prompts share count once."""
        cycle = self.mix.repeats
        bodies = [cycle[index % len(cycle)] * BODY_TOKENS for index in range(self.requests)]
        if sharing:
            longest = max(bodies) if max(cycle) > 1 else 0
            return CHAT_TOKENS + self.mix.head_tokens + longest + self.requests * BODY_TOKENS
        return sum(bodies) + self.requests * (CHAT_TOKENS + self.mix.head_tokens)

    def scaled(self, factor: float, *, prompts: bool = True) -> Size:
        """Returns a smaller size: answers and, if asked, prompts shrink by the factor, requests by its square root."""
        return Size(
            requests=max(min(LEAST_REQUESTS, self.requests), round(self.requests * math.sqrt(factor))),
            answer=max(min(LEAST_ANSWER, self.answer), round(self.answer * factor)),
            mix=_shorter(self.mix, factor) if prompts else self.mix,
        )


def _shorter(mix: PromptMix, factor: float) -> PromptMix:
    repeats = tuple(max(min(LEAST_REPEATS, count), round(count * factor)) for count in mix.repeats)
    return replace(
        mix, repeats=repeats, head_tokens=max(min(LEAST_HEAD, mix.head_tokens), round(mix.head_tokens * factor))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions under which a burst is answered."""

    places: int = 32  # how many of the burst's answers a step has room for
    others: int = 0  # answers of other traffic that stream at the same time
    budget: int | None = None  # the most prompt tokens of a step; ``None`` is unlimited
    sharing: bool = True  # parts that prompts have in common are computed once
    interval: int = 0  # steps that only decode between two steps with prompt tokens


def answered_s(size: Size, speed: Speed, under: Conditions) -> float:
    """Returns the estimated seconds until a burst is answered."""
    prompt_tokens, rounds = size.prompt_tokens(sharing=under.sharing), -(-size.requests // under.places)
    prefills = max(rounds, -(-prompt_tokens // under.budget) if under.budget else 1)
    streams = min(under.places, size.requests) + under.others
    prefill_s = prefills * speed.step(under.others + 1) + prompt_tokens * speed.token_s
    between_s = (prefills - 1) * under.interval * speed.step(streams)
    return prefill_s + between_s + rounds * size.answer * speed.step(streams)


def fitted(size: Size, takes_s: Callable[[Size], float], seconds: float, *, prompts: bool = True) -> Size:
    """Returns the size, scaled down as far as needed to take at most ``seconds``.

    If even the smallest size tried takes longer, returns that one.

    Args:
        takes_s: returns the seconds that a size takes; a smaller size must not take longer.
        prompts: whether prompts may be shortened too.
    """
    smaller = size
    for number in range(_STEPS):
        if takes_s(smaller) <= seconds:
            break
        smaller = size.scaled(SHRINK ** (number + 1), prompts=prompts)
    return smaller


def slow_motion(takes_s: float, watched_s: float) -> float:
    """Returns the smallest of ``SLOW_MOTION`` that stretches ``takes_s`` to ``watched_s`` seconds, else the largest."""
    return next((factor for factor in SLOW_MOTION if factor * takes_s >= watched_s), SLOW_MOTION[-1])


def sustained_rate(size: Size, speed: Speed, under: Conditions) -> float:
    """Returns the estimated rate, in requests a second, that is answered without a growing queue."""
    prompt_s = size.prompt_tokens(sharing=under.sharing) / size.requests * speed.token_s
    return 1 / (prompt_s + size.answer * speed.step(under.places) / under.places)
