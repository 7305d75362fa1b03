"""Tries settings on growing numbers of GPUs until one holds the limits, also if the simulation errs.

A setting that holds them is simulated again, with all steps longer by the error of the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from roseplay.clock import VirtualClock
from roseplay.config import EngineConfig, Knobs
from roseplay.extras.simulation.calibrated import Calibration
from roseplay.extras.simulation.cost import CostModel
from roseplay.extras.simulation.evidence import Evidence, cost_model
from roseplay.extras.simulation.gpus import GPU, SimulationError
from roseplay.extras.simulation.memory import TooSmallError, choose_num_blocks
from roseplay.extras.simulation.model_shape import ModelShape
from roseplay.extras.simulation.outcome import Simulated, SimulatedRequest
from roseplay.extras.simulation.plan.limits import Limits
from roseplay.extras.simulation.runner import SimulatedRunner
from roseplay.extras.simulation.summary import Summary, summarize
from roseplay.extras.simulation.virtual import VirtualServer

SIZES = (1, 2, 4, 8, 16)
# The usual setting first: requests at once, and tokens of a step.
SETTINGS = ((256, 8192), (256, 2048), (256, 512), (64, 8192), (64, 2048), (64, 512))


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting, and its figures under the load."""

    gpus: int  # size of the tensor parallel group
    max_batch_size: int  # knobs of the scheduler
    step_max_tokens: int
    num_blocks: int
    figures: Summary
    # Its figures with all steps longer by ``margin``; None if the limits are not held even without.
    longer: Summary | None
    margin: float  # the share by which nine in ten of the points behind the durations are off at most
    evidence: Evidence
    steps: int  # simulated, with and without the margin
    seconds: float

    def holds(self, limits: Limits) -> bool:
        """Returns whether all limits are held with the error as margin."""
        return self.longer is not None and not limits.fault(self.longer)


def search(
    shape: ModelShape,
    gpu: GPU,
    load: Sequence[SimulatedRequest],
    limits: Limits,
    config: EngineConfig,
    sizes: Sequence[int],
    own: Calibration | None = None,
    clients: int | None = None,
) -> tuple[list[Tried], list[str]]:
    """Returns what was tried, until all settings of the smallest sufficient number of GPUs have been, and why others of
    ``sizes`` were not.

    Args:
        config: ``max_model_len``, memory and block size.
        sizes: numbers of GPUs, in order.
        own: a calibration of the GPU.
        clients: if given, as many send the requests one after the other, instead of at their times.

    Raises:
        SimulationError: the model fits on none of them.
    """
    done, left_out = list[Tried](), dict[str, SimulationError]()
    for gpus in sizes:
        busiest = dict[int, int]()
        for max_batch_size, step_max_tokens in SETTINGS:
            if busiest.get(step_max_tokens, max_batch_size + 1) <= max_batch_size:
                continue  # no more than this ran at once with a larger batch: the outcome is the same
            knobs = Knobs(max_batch_size=max_batch_size, step_max_tokens=step_max_tokens)
            try:
                tried = _try(*cost_model(shape, gpu, gpus, own), load, limits, config, knobs, clients)
            except SimulationError as error:
                left_out[str(error)] = error
                break
            busiest[step_max_tokens] = tried.figures.busiest
            done.append(tried)
        if any(tried.holds(limits) for tried in done):
            break
    if not done:
        small = [error for error in left_out.values() if isinstance(error, TooSmallError)]
        raise small[-1] if small else next(iter(left_out.values()))
    return done, [*left_out]


def best(tried: Sequence[Tried], limits: Limits) -> Tried:
    """Returns the setting that holds the limits with the fewest GPUs and the most room, else the one that comes nearest."""
    holding = [one for one in tried if one.holds(limits)]
    fewest = [one for one in holding if one.gpus == holding[0].gpus]
    return min(fewest or tried, key=lambda one: limits.use(one.longer or one.figures))


def _try(
    cost: CostModel,
    evidence: Evidence,
    load: Sequence[SimulatedRequest],
    limits: Limits,
    config: EngineConfig,
    knobs: Knobs,
    clients: int | None,
) -> Tried:
    runs: list[Simulated] = []

    def played(factor: float) -> Summary:
        clock = VirtualClock()
        runner = SimulatedRunner(cost.scaled(factor), evidence, config, clock)
        runs.append(VirtualServer(runner, clock, knobs).play(load, clients))
        return summarize(runs[-1], cost.parameters.server_s)

    figures, longer, margin = played(1.0), None, evidence.errors.p90
    if not limits.fault(figures):
        with suppress(SimulationError):  # the steps of an absurd calibration become too long
            longer = played(1 + margin)
    assert knobs.step_max_tokens is not None
    blocks = choose_num_blocks(cost, config, config.max_model_len or cost.shape.max_len)
    sizes = (cost.tensor_parallel, knobs.max_batch_size, knobs.step_max_tokens, blocks)
    steps, seconds = sum(len(run.ends_ns) for run in runs), sum(run.seconds for run in runs)
    return Tried(*sizes, figures, longer, margin, evidence, steps, seconds)
