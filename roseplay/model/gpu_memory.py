"""How much of a GPU the KV cache may have: what is left beside weights and the largest step, which is run to see."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.model.device_errors import is_out_of_memory

logger = logging.getLogger(__name__)

# Tokens of the largest step that is tried, and requests whose logits it takes.
STEP_TOKENS = 8192
STEP_LOGITS = 256


@dataclass(frozen=True, slots=True)
class Profile:
    """A step of ``tokens`` ran, and took ``activation_bytes`` at its peak beside what was there before."""

    tokens: int
    activation_bytes: int


def profile(run: Callable[[int], None], tokens: int, device: torch.device, cuda: Any = torch.cuda) -> Profile:
    """Run a step of so many tokens, of half as many where memory is short, and see what it takes.

    Args:
        run: a step of the given number of tokens.
        cuda: ``torch.cuda``, or what stands for it in a test.

    Raises ``torch.OutOfMemoryError`` when not even a single token finds memory.
    """
    while True:
        cuda.empty_cache()
        cuda.reset_peak_memory_stats(device)
        before = cuda.memory_allocated(device)
        try:
            run(tokens)
            cuda.synchronize(device)
        except Exception as error:
            if tokens == 1 or not is_out_of_memory(error):
                raise
            logger.warning("no memory for a step of %d tokens: steps will be smaller", tokens)
            tokens //= 2
            continue
        peak = cuda.max_memory_allocated(device)
        cuda.empty_cache()
        return Profile(tokens, peak - before)


def greediest_requests(count: int) -> list[Request]:
    """Requests whose tokens take the most memory to draw: all penalties, a cut that sorts the vocabulary, log-probabilities."""
    params = SamplingParams(
        temperature=1.0,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.1,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logprobs=20,
    )
    return [Request(number, [0], params) for number in range(count)]


def kv_cache_bytes(utilization: float, activation_bytes: int, device: torch.device, cuda: Any = torch.cuda) -> int:
    """What the KV cache may take, in bytes; below 0 when there is nothing left.

    Args:
        utilization: share of the GPU's memory that everything on it may take, others' included.
    """
    free, total = cuda.mem_get_info(device)
    return int(total * utilization) - (total - free) - activation_bytes


def free_bytes(device: torch.device, cuda: Any = torch.cuda) -> tuple[int, int]:
    """What of a GPU's memory is free, and all of it, in bytes. What this process holds unused is given back first."""
    cuda.empty_cache()
    free, total = cuda.mem_get_info(device)
    return free, total
