"""How much of a GPU's memory the KV cache may take: what the weights and the largest step, which is measured, leave."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from roseplay.config import SamplingParams
from roseplay.core.request import Request
from roseplay.model import exclusive
from roseplay.model.device_errors import is_out_of_memory

logger = logging.getLogger(__name__)

# Tokens of the largest step that is tried, and the rows of logits that it computes.
STEP_TOKENS = 8192
STEP_LOGITS = 256


@dataclass(frozen=True, slots=True)
class Profile:
    """The size of the largest step that fits, and the peak memory that it allocated."""

    tokens: int
    activation_bytes: int


def empty_cache(cuda: Any = torch.cuda) -> None:
    """Return memory that torch's allocator caches to the GPU; waits while another engine captures a graph."""
    with exclusive.capturing:
        cuda.empty_cache()


def profile(run: Callable[[int], None], tokens: int, device: torch.device, cuda: Any = torch.cuda) -> Profile:
    """Run a step of ``tokens`` tokens and measure its memory; while memory is short, retry with half as many.

    Args:
        run: runs a step of the given number of tokens.
        cuda: ``torch.cuda``, or a test's substitute for it.

    Raises an out-of-memory error if there is no memory for a single token.
    """
    while True:
        empty_cache(cuda)
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
        empty_cache(cuda)
        return Profile(tokens, peak - before)


def greediest_requests(count: int) -> list[Request]:
    """Returns requests whose sampling needs the most memory: penalties, top-p, log-probabilities."""
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
    """Returns the bytes that the KV cache may take; negative if nothing is left.

    Args:
        utilization: the fraction of the GPU's memory that may be in use, by this and all other processes.
    """
    free, total = cuda.mem_get_info(device)
    return int(total * utilization) - (total - free) - activation_bytes


def free_bytes(device: torch.device, cuda: Any = torch.cuda) -> tuple[int, int]:
    """Returns a GPU's free and total memory in bytes, after emptying torch's cache of unused memory."""
    empty_cache(cuda)
    free, total = cuda.mem_get_info(device)
    return free, total
