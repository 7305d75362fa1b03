"""Plays one workload several times on one engine: warm-up runs, then runs that count."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING

from roseplay.traffic.driver import Driver
from roseplay.traffic.metrics import Metrics, measure
from roseplay.traffic.workload import Workload

if TYPE_CHECKING:
    from roseplay.engine.client import Engine


class BenchmarkError(RuntimeError):
    """A run that gives no figures: it was given up, or requests failed. The message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of one workload under one setting, in the order they were played; at least one."""

    metrics: list[Metrics]

    @property
    def median(self) -> Metrics:
        """The run with the median tokens/s (of an even number, the slower of the two in the middle)."""
        ordered = sorted(self.metrics, key=lambda metrics: metrics.output_tokens_per_s)
        return ordered[(len(ordered) - 1) // 2]

    @property
    def spread(self) -> tuple[float, float]:
        """Lowest and highest tokens/s."""
        rates = [metrics.output_tokens_per_s for metrics in self.metrics]
        return min(rates), max(rates)


def play_once(engine: Engine, workload: Workload, *, keep_cache: bool = False, time_limit_s: float = 600.0) -> Metrics:
    """One run; starts with an empty prefix cache unless ``keep_cache``.

    Raises:
        ValueError: slow motion is on, or the engine refuses a request of the workload.
        BenchmarkError: the run took longer than ``time_limit_s``, or a request failed or was aborted.
    """
    if engine.knobs.slow_motion != 1:
        raise ValueError("slow motion is on: its times are stretched on purpose, so benchmarks refuse it")
    if not keep_cache:
        engine.clear_cache()
    gc.collect()  # not in the middle of a run
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


def play(
    engine: Engine,
    workload: Workload,
    *,
    warmup_runs: int = 1,
    repeat_runs: int = 1,
    keep_cache: bool = False,
    time_limit_s: float = 600.0,
) -> Runs:
    """``warmup_runs`` that are forgotten, then ``repeat_runs`` that count; raises what ``play_once`` raises."""
    metrics = [
        play_once(engine, workload, keep_cache=keep_cache, time_limit_s=time_limit_s)
        for _ in range(warmup_runs + repeat_runs)
    ]
    return Runs(metrics[warmup_runs:])
