"""The traffic of a plan: a recorded file, or requests of one size, at the rate that was asked for."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from pathlib import Path

from roseplay.extras.simulation.outcome import SimulatedRequest
from roseplay.traffic.arrivals import burst, poisson
from roseplay.traffic.lengths import CHARACTERS_PER_TOKEN
from roseplay.traffic.own import OwnRequest, at_rate, parse_traffic

_SEED = 0


def read_load(file: Path, rate_per_s: float | None, vocab: int) -> list[SimulatedRequest]:
    """Returns the requests of a file (JSONL, CSV or conversations), at its own rate or at another.

    A given rate stretches or compresses the file's arrivals. Requests that have none, or that all arrive at once, get
    Poisson arrivals.

    Raises:
        ValueError: the file cannot be read, or has no requests; one line.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    requests = parse_traffic(content, seed=_SEED)
    if rate_per_s is not None:
        spread = requests[-1].arrival_s > 0
        requests = (
            at_rate(requests, rate_per_s) if spread else parse_traffic(content, rate_per_s=rate_per_s, seed=_SEED)
        )
    return _simulated(requests, vocab)


def uniform_load(
    count: int, rate_per_s: float | None, prompt_tokens: int, answer_tokens: int, vocab: int
) -> list[SimulatedRequest]:
    """Returns requests of one size that share nothing, with Poisson arrivals, or at once without a rate."""
    times = burst(count) if rate_per_s is None else poisson(count, rate_per_s, seed=_SEED)
    return _simulated([OwnRequest(at_s, prompt_tokens, answer_tokens) for at_s in times], vocab)


def _simulated(requests: Sequence[OwnRequest], vocab: int) -> list[SimulatedRequest]:
    rng = random.Random(_SEED)
    return [
        SimulatedRequest(one.arrival_s, _tokens_of(one.prompt, vocab, rng), one.answer_tokens, one.tenant, one.priority)
        for one in requests
    ]


def _tokens_of(prompt: str | int, vocab: int, rng: random.Random) -> list[int]:
    """Returns random ids of a length, or one for each few characters of a text: texts that begin alike share tokens."""
    if isinstance(prompt, int):
        return rng.choices(range(vocab), k=prompt)
    pieces = (prompt[i : i + CHARACTERS_PER_TOKEN] for i in range(0, len(prompt), CHARACTERS_PER_TOKEN))
    return [zlib.crc32(piece.encode("utf-8", "replace")) % vocab for piece in pieces]
