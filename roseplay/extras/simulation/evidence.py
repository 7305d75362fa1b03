"""Where a simulated figure comes from, and how far off such figures are at published points.

Labels: *published* is a measured figure with a source. *Calibrated* figures use parameters fitted to measured points of
the same GPU and weight format, published ones or the user's own. *Uncalibrated* ones use the default parameters.
*Saturated* ones grow with the length of the run, because requests arrive faster than they are answered, and have no error
bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from roseplay.extras.simulation.calibrated import Calibration
from roseplay.extras.simulation.calibration import LEAST_POINTS, Errors, fit, predict_held_out
from roseplay.extras.simulation.cost import CostModel, Parameters
from roseplay.extras.simulation.gpus import GPU, SimulationError
from roseplay.extras.simulation.model_shape import ModelShape
from roseplay.extras.simulation.published import Point, published
from roseplay.formats.numbers import percent_text

SATURATED = "saturated, the queue keeps growing"
# TTFT under load differs from published rows by 24 to 42% in the mean of each group, as it does for other simulators.
_TTFT = f"within about {percent_text(40)} of published figures"
_DECODES = ("itl", "tpot", "step")


@dataclass(frozen=True, slots=True)
class Evidence:
    """What stands behind the durations of one deployment's steps."""

    calibrated_on: int  # number of points that the parameters were fitted to; 0 for default parameters
    # Errors at points that were not fitted: each held out in turn, or, of default parameters, at all published rows of
    # served models.
    errors: Errors
    models: tuple[str, ...]  # the models that were measured
    validated: bool  # whether the kind of model was compared with measurements at all; mixtures of experts were not
    own: Calibration | None = None  # the user's own calibration; None where the points are published ones
    first_tokens: bool = False  # whether TTFT under load was published with the points

    @property
    def kind(self) -> str:
        """Returns the label without the error."""
        return f"calibrated on {self.calibrated_on} points" if self.calibrated_on else "uncalibrated"

    @property
    def label(self) -> str:
        error = f" (error {percent_text(100 * self.errors.median, 1)})" if self.calibrated_on else ""
        return f"{self.kind}{error}"

    @property
    def bound(self) -> float | None:
        """By what share durations may be off: that within which nine in ten of the points are.

        None for a kind of model that was not compared with measurements, and for an error of 100% or more, from which no
        shortest duration follows.
        """
        share = round(self.errors.p90, 3)
        return share if self.validated and share < 1 else None

    def __str__(self) -> str:
        if self.calibrated_on:
            kind = "own" if self.own else "published"
            basis = (
                f"calibrated on {self.calibrated_on} {kind} points of {', '.join(self.models)} (error: {self.errors})"
            )
        else:
            basis = f"uncalibrated (error at {self.errors.points} published points of other deployments: {self.errors})"
        if not self.validated:
            basis += "; mixtures of experts are not validated"
        return f"{basis}; TTFT under load: {_TTFT if self.first_tokens else 'not compared with measurements'}"


def cost_model(
    shape: ModelShape, gpu: GPU, tensor_parallel: int = 1, own: Calibration | None = None
) -> tuple[CostModel, Evidence]:
    """Returns a deployment's cost model, calibrated if there are enough points, and what stands behind it.

    Args:
        own: a calibration of this GPU, which takes the place of published points.

    Raises:
        SimulationError: see ``CostModel``; or the calibration is of another weight format.
    """
    if own is not None:
        if own.weights != shape.weights:
            raise SimulationError(
                f"{own.measured} was measured with {own.weights} weights, but {shape.name} has {shape.weights}: calibrate"
                " on a model with such weights"
            )
        evidence = Evidence(len(own.points), own.errors, (own.measured,), not shape.experts, own)
        return CostModel(shape, gpu, tensor_parallel, own.parameters), evidence
    points = _points_of(gpu.name, shape.weights)
    if len(points) < LEAST_POINTS:
        return CostModel(shape, gpu, tensor_parallel), Evidence(0, _uncalibrated(), (), not shape.experts)
    parameters, errors = _fitted(points, Parameters.default(gpu, shape.weights))
    models = tuple(sorted({point.model for point in points}))
    first_tokens = any(point.ttft_s is not None and point.streams > 1 for point in points)
    evidence = Evidence(len(points), errors, models, not shape.experts, first_tokens=first_tokens)
    return CostModel(shape, gpu, tensor_parallel, parameters), evidence


def _points_of(gpu: str, weights: str) -> tuple[Point, ...]:
    """Returns the points of a GPU and weight format: those of vLLM if there are enough, as engines differ."""
    points = [p for p in published() if p.gpu == gpu and p.weights == weights and p.measured in _DECODES]
    of_vllm = [point for point in points if point.engine.startswith("vLLM")]
    return tuple(of_vllm if len(of_vllm) >= LEAST_POINTS else points)


@cache
def _fitted(points: tuple[Point, ...], start: Parameters) -> tuple[Parameters, Errors]:
    terms, seconds = np.array([p.terms() for p in points]), np.array([p.seconds for p in points])
    return fit(terms, seconds, start), Errors.of(predict_held_out(terms, seconds, start), seconds)


@cache
def _uncalibrated() -> Errors:
    """Returns the errors of default parameters at all published rows of served models."""
    rows = [point for point in published() if point.measured == "tpot"]
    predicted = [p.terms() @ p.cost_model().parameters.as_vector() for p in rows]
    return Errors.of(np.array(predicted), np.array([p.seconds for p in rows]))
