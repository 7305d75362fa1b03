"""Tries settings on growing numbers of GPUs until one holds the limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roseplay.clock import VirtualClock
from roseplay.config import EngineConfig, Knobs
from roseplay.plan.slo import SLO
from roseplay.sim.calibrated import Calibration
from roseplay.sim.cost import CostModel
from roseplay.sim.evidence import Evidence, cost_model
from roseplay.sim.gpus import GPU, SimulationError
from roseplay.sim.model_shape import ModelShape
from roseplay.sim.outcome import SimulatedRequest
from roseplay.sim.runner import SimulatedRunner
from roseplay.sim.summary import Summary, summarize
from roseplay.sim.virtual import VirtualServer

SIZES = (1, 2, 4, 8, 16)
# The usual setting first: requests at once, and tokens of a step.
SETTINGS = ((256, 8192), (256, 2048), (256, 512), (64, 8192), (64, 2048), (64, 512))


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting, and its figures under the load.

    Attributes:
        gpus: size of the tensor parallel group.
        max_batch_size, step_max_tokens: knobs of the scheduler.
        steps, skipped: number of simulated steps, and how many of them were applied in runs.
    """

    gpus: int
    max_batch_size: int
    step_max_tokens: int
    num_blocks: int
    figures: Summary
    evidence: Evidence
    steps: int
    skipped: int
    seconds: float

    def holds(self, slo: SLO) -> bool:
        """Returns whether all limits are held, in a run whose figures do not depend on its length."""
        return not (self.figures.saturated or self.figures.refused) and slo.use(self.figures) <= 1


def search(
    shape: ModelShape,
    gpu: GPU,
    load: Sequence[SimulatedRequest],
    slo: SLO,
    config: EngineConfig,
    sizes: Sequence[int],
    own: Calibration | None = None,
) -> Iterator[Tried]:
    """Yields what was tried, until all settings of the smallest sufficient number of GPUs have been.

    Args:
        config: ``max_model_len``, memory and block size.
        sizes: numbers of GPUs, in order; those on which the model does not fit are left out.
        own: a calibration of the GPU.

    Raises:
        SimulationError: the model fits on none of them; the message is that of the largest.
    """
    fitted, refusal = False, None
    for gpus in sizes:
        holds, busiest = False, dict[int, int]()
        for max_batch_size, step_max_tokens in SETTINGS:
            if busiest.get(step_max_tokens, max_batch_size + 1) <= max_batch_size:
                continue  # no more than this ran at once with a larger batch: the outcome is the same
            knobs = Knobs(max_batch_size=max_batch_size, step_max_tokens=step_max_tokens)
            try:
                tried = _try(*cost_model(shape, gpu, gpus, own), load, config, knobs)
            except SimulationError as error:
                refusal = error
                break
            busiest[step_max_tokens] = tried.figures.busiest
            fitted, holds = True, holds or tried.holds(slo)
            yield tried
        if holds:
            return
    if not fitted:
        assert refusal is not None
        raise refusal


def best(tried: Sequence[Tried], slo: SLO) -> Tried:
    """Returns the setting that holds the limits with the fewest GPUs and the most room, else the one that comes nearest."""
    return min(tried, key=lambda one: (not one.holds(slo), one.gpus if one.holds(slo) else 0, slo.use(one.figures)))


def _try(
    cost: CostModel, evidence: Evidence, load: Sequence[SimulatedRequest], config: EngineConfig, knobs: Knobs
) -> Tried:
    clock = VirtualClock()
    runner = SimulatedRunner(cost, evidence, config, clock)
    played = VirtualServer(runner, clock, knobs).play(load)
    assert knobs.step_max_tokens is not None
    return Tried(
        cost.tensor_parallel,
        knobs.max_batch_size,
        knobs.step_max_tokens,
        runner.num_blocks,
        summarize(played, cost.parameters.server_s),
        evidence,
        steps=len(played.ends_ns),
        skipped=played.skipped,
        seconds=played.seconds,
    )
