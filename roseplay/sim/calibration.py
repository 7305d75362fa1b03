"""Fits the parameters of step durations to measured points, and says how far off they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roseplay.sim.cost import Parameters

# Weight of the defaults against one point: few points move a parameter only where they depend on it.
PULL = 0.03
# A parameter stays within this factor of its default, so that none becomes negative or absurd.
_FARTHEST = 4.0
LEAST_POINTS = 3


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of predictions, as shares.

    Attributes:
        median: median of their absolute values.
        within_10, within_20: share of the points that are off by at most 10% or 20%.
        p90: by how much nine in ten of the points are off at most.
    """

    points: int
    median: float
    within_10: float
    within_20: float
    p90: float

    @classmethod
    def of(cls, predicted: np.ndarray, measured: np.ndarray) -> Errors:
        """Returns the errors of predictions ``[n]``, n at least 1, in the unit of ``measured``."""
        off = np.abs(predicted / measured - 1)
        within_10, within_20 = (float(np.mean(off <= most)) for most in (0.1, 0.2))
        return cls(len(off), float(np.median(off)), within_10, within_20, float(np.quantile(off, 0.9)))

    def __str__(self) -> str:
        return f"median {self.median:.1%}, {self.within_10:.0%} within 10%"


def fit(terms: np.ndarray, seconds: np.ndarray, start: Parameters, pull: float = PULL) -> Parameters:
    """Returns the parameters that predict the points best: one least-squares call over relative errors.

    The fit is pulled towards ``start`` (ridge regression), because the terms are nearly collinear where points are few.

    Args:
        terms: ``[n, 5]``, see ``CostModel.terms``.
        seconds: ``[n]``, measured.
        pull: weight of each parameter's relative distance from ``start`` against one point's relative error.
    """
    before = start.as_vector()
    rows = terms * before / seconds[:, None]  # in units of the start, so that all parameters are near 1
    lhs = np.vstack([rows, pull * np.eye(len(before))])
    rhs = np.concatenate([np.ones(len(seconds)), np.full(len(before), pull)])
    found, *_ = np.linalg.lstsq(lhs, rhs, rcond=None)
    return start.with_vector(np.clip(found, 1 / _FARTHEST, _FARTHEST) * before)


def held_out(terms: np.ndarray, seconds: np.ndarray, start: Parameters) -> Errors:
    """Returns the errors at points that were not fitted: each is predicted from all others."""
    keep = ~np.eye(len(seconds), dtype=bool)
    predicted = [terms[i] @ fit(terms[keep[i]], seconds[keep[i]], start).as_vector() for i in range(len(seconds))]
    return Errors.of(np.array(predicted), seconds)


def fit_first_tokens(prompts_s: Sequence[float], base_s: Sequence[float], measured_s: Sequence[float]) -> np.ndarray:
    """Returns ``[2]``: the factor on the prompts' computing time, and the seconds of the server, of unloaded TTFTs.

    Args:
        prompts_s: seconds that the prompts' operations take by the present parameters.
        base_s: the rest of their steps.
        measured_s: the measured TTFTs; at least two of different lengths.
    """
    measured = np.asarray(measured_s)
    lhs = np.stack([np.asarray(prompts_s), np.ones(len(measured))], axis=1)
    found, *_ = np.linalg.lstsq(lhs / measured[:, None], (measured - np.asarray(base_s)) / measured, rcond=None)
    return np.asarray(found)
