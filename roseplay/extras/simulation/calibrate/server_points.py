"""Measures a running server at a few loads: clients that each send a request, wait until all have ended, and repeat."""

from __future__ import annotations

import random
import statistics
import uuid
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from roseplay.config import SamplingParams
from roseplay.engine.engine_like import EngineLike
from roseplay.engine.errors import EngineError
from roseplay.extras.simulation.calibrate.result_files import MANY_TOKENS_A_PIECE
from roseplay.extras.simulation.points import Measurement
from roseplay.traffic.driver import Driver, Played
from roseplay.traffic.lengths import CHARACTERS_PER_TOKEN
from roseplay.traffic.metrics import measure
from roseplay.traffic.workload import Arrival

_WORDS = "each step reads the weights once and then all keys and values of the requests that run at this moment".split()
_ROUNDS = 3  # of which the last two count: a server may compile or load something for the first
_MOST_ROUNDS, _ALIKE = 6, 1.3  # until the gaps of the last two differ by less than this factor
LEAST_ANSWER = 8  # tokens


class Load(NamedTuple):
    """A number of clients, about how many tokens each of their prompts has, and how many each answer has."""

    clients: int
    prompt: int
    answer: int


def loads(clients: Sequence[int], prompt: int, long_prompt: int, answer: int) -> list[Load]:
    """Returns each number of clients with short prompts, and the least and the middle one with long prompts too."""
    numbers = sorted(set(clients))
    long = sorted({numbers[0], numbers[len(numbers) // 2]})
    return [*(Load(one, prompt, answer) for one in numbers), *(Load(one, long_prompt, answer) for one in long)]


def measure_server(engine: EngineLike, asked: Sequence[Load], time_limit_s: float) -> Iterator[Measurement]:
    """Yields what was measured at each load: medians of ITL and TTFT.

    No prompt begins like another, so that a prefix cache has no effect.

    Args:
        time_limit_s: for all requests of one round.

    Raises:
        EngineError: requests were refused, failed, or took too long; one line.
    """
    for load in asked:
        played = [_play(engine, load, time_limit_s) for _ in range(_ROUNDS)]
        while len(played) < _MOST_ROUNDS and not _agree(played[-2:]):
            played.append(_play(engine, load, time_limit_s))
        _check_streaming(load, played)
        rounds = [measure(one) for one in played[-2:]]
        sent = sum(one.completed for one in rounds)
        prompt = sum(one.prompt_tokens for one in rounds) / sent
        yield Measurement(
            measured="itl",
            prompt=round(prompt) or load.prompt,  # 0 from a server that does not count
            answer=round(sum(one.completion_tokens for one in rounds) / sent),
            streams=load.clients,
            seconds=statistics.median(one.itl.p50 or 0.0 for one in rounds) / 1e3,
            ttft_s=statistics.median(one.ttft.p50 or 0.0 for one in rounds) / 1e3,
        )


def _agree(played: Sequence[Played]) -> bool:
    """Returns whether nothing disturbed one of the rounds more than another."""
    gaps = [measure(one).itl.p50 or 0.0 for one in played]
    return max(gaps) <= _ALIKE * min(gaps)


def _play(engine: EngineLike, load: Load, time_limit_s: float) -> Played:
    """Send the requests of all clients at once and wait for their answers."""
    params = SamplingParams(max_new_tokens=load.answer, ignore_eos=True)
    workload = [Arrival(0.0, _prompt(load.prompt), params) for _ in range(load.clients)]
    played = Driver(engine, workload, time_limit_s=time_limit_s).run()
    what = f"{load.clients} requests of {load.prompt} + {load.answer} tokens"
    if played.stopped is not None:
        raise EngineError(f"{what} took longer than {time_limit_s:g} s: ask for fewer clients or shorter answers")
    metrics = measure(played)
    if metrics.completed < load.clients:
        errors = [outcome.stream.error if outcome.stream else outcome.refused for outcome in played.outcomes]
        first = next((" ".join(error.split()) for error in errors if error), "aborted")
        raise EngineError(f"{load.clients - metrics.completed} of {what} failed: {first}")
    if metrics.completion_tokens < LEAST_ANSWER * load.clients:
        raise EngineError(f"{what}: the answers ended after {metrics.completion_tokens / load.clients:.0f} tokens")
    return played


def _check_streaming(load: Load, rounds: Sequence[Played]) -> None:
    """Raises ``EngineError`` if in each round several tokens arrived at once, or clients waited for each other.

    One round is not enough: on a busy machine, tokens that arrive one after another are read together.
    """
    at_once, streaming = [], []
    for played in rounds:
        answers = [outcome.stream.metrics for outcome in played.outcomes if outcome.stream is not None]
        at_once.append(measure(played).completion_tokens / sum(1 + len(answer.itl_s) for answer in answers))
        times = [(answer.first_token_ns or 0, answer.last_token_ns or 0) for answer in answers]
        streaming.append(max(sum(first <= at_ns < last for first, last in times) for at_ns, _ in times))
    what = f"{load.clients} requests of {load.prompt} + {load.answer} tokens"
    if min(at_once) > MANY_TOKENS_A_PIECE:
        raise EngineError(
            f"{what}: {min(at_once):.1f} tokens arrived at once on average, as with speculative decoding, which is not"
            " modelled: measure one token at a time"
        )
    if max(streaming) < load.clients / 2:
        raise EngineError(
            f"{what}: only {max(streaming)} answers streamed at once, the others waited: ask for fewer clients"
        )


def _prompt(tokens: int) -> str:
    """Returns a text of about as many tokens, whose beginning is unique."""
    begin = uuid.uuid4().hex[:8]
    rng = random.Random(begin)
    words, left = [begin], tokens * CHARACTERS_PER_TOKEN - len(begin)
    while left > 0:
        words.append(rng.choice(_WORDS))
        left -= len(words[-1]) + 1
    return " ".join(words)
