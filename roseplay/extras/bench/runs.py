"""One run of a workload on an engine, measured."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterable
from typing import TYPE_CHECKING

from roseplay.traffic.driver import Driver
from roseplay.traffic.metrics import Metrics, measure
from roseplay.traffic.workload import Workload

if TYPE_CHECKING:
    from roseplay.engine.client import Engine


class BenchmarkError(RuntimeError):
    """A run has no figures, since it timed out or requests failed. The message is one line for the user."""


def random_prompts(vocab_size: int, lengths: Iterable[int], seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


def play_once(engine: Engine, workload: Workload, *, keep_cache: bool = False, time_limit_s: float = 600.0) -> Metrics:
    """Play the workload once and return its metrics; starts with an empty prefix cache unless ``keep_cache``.

    Raises:
        ValueError: slow motion is on, or the engine refuses a request of the workload.
        BenchmarkError: the run took longer than ``time_limit_s``, or a request failed or was aborted.
    """
    if engine.knobs.slow_motion != 1:
        raise ValueError("slow motion is on: its times are stretched on purpose, so benchmarks refuse it")
    if not keep_cache:
        engine.clear_cache()
    gc.collect()  # so that it does not happen during the run
    played = Driver(engine, workload, time_limit_s=time_limit_s).run()
    if played.stopped is not None:
        raise BenchmarkError(f"the run was given up after {time_limit_s:g} s: send less, or raise --time-limit-s")
    metrics = measure(played)
    if metrics.refused:
        first = next(outcome.refused for outcome in played.outcomes if outcome.refused is not None)
        raise ValueError(f"{metrics.refused} of {metrics.requests} requests were refused: {first}")
    if metrics.failed or metrics.aborted:
        errors = [outcome.stream.error for outcome in played.outcomes if outcome.stream and outcome.stream.error]
        reason = f": {errors[0]}" if errors else ""
        raise BenchmarkError(f"{metrics.failed} requests failed and {metrics.aborted} were aborted{reason}")
    return metrics
