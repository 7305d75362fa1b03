"""Fits the parameters of step durations to measured points, and says how far off they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from roseplay.extras.simulation.cost import Parameters
from roseplay.formats.numbers import percent_text

LEAST_POINTS = 3
_COMPUTE, _CPU_ATTENTION, _CPU_EAGER = 3, 6, 7  # places in ``Parameters.as_vector``


class Hold(NamedTuple):
    """How tightly a fit is held to its start."""

    # Weight of each parameter's relative distance from the start against one point's relative error: few points move a
    # parameter only where they depend on it.
    pull: float
    farthest: float  # largest factor between a parameter and its start, so that none becomes negative or absurd


GPU_HOLD = Hold(0.03, 4.0)
# The start is less certain: attention is not bound by the memory's bandwidth, and the host's work differs more.
CPU_HOLD = Hold(0.01, 50.0)


@dataclass(frozen=True, slots=True)
class Errors:
    """Relative errors of predictions, as shares."""

    points: int
    median: float  # median of their absolute values
    within_10: float  # share of the points that are off by at most 10% or 20%
    within_20: float
    p90: float  # by how much nine in ten of the points are off at most

    @classmethod
    def of(cls, predicted: np.ndarray, measured: np.ndarray) -> Errors:
        """Returns the errors of predictions ``[n]``, n at least 1, in the unit of ``measured``."""
        off = np.abs(predicted / measured - 1)
        within_10, within_20 = (float(np.mean(off <= most)) for most in (0.1, 0.2))
        return cls(len(off), float(np.median(off)), within_10, within_20, float(np.quantile(off, 0.9)))

    def __str__(self) -> str:
        return f"median {percent_text(100 * self.median, 1)}, {percent_text(100 * self.within_10, 0)} within {percent_text(10)}"


def fit(terms: np.ndarray, seconds: np.ndarray, start: Parameters, hold: Hold = GPU_HOLD) -> Parameters:
    """Returns the parameters that predict the points best: one least-squares call over relative errors.

    The fit is pulled towards ``start`` (ridge regression), because the terms are nearly collinear where points are few.

    Args:
        terms: ``[n, 8]``, see ``CostModel.terms``.
        seconds: ``[n]``, measured.
    """
    before = start.as_vector()
    rows = terms * before / seconds[:, None]  # in units of the start, so that all parameters are near 1
    lhs = np.vstack([rows, hold.pull * np.eye(len(before))])
    rhs = np.concatenate([np.ones(len(seconds)), np.full(len(before), hold.pull)])
    found, *_ = np.linalg.lstsq(lhs, rhs, rcond=None)
    return start.with_vector(np.clip(found, 1 / hold.farthest, hold.farthest) * before)


def predict_held_out(terms: np.ndarray, seconds: np.ndarray, start: Parameters, hold: Hold = GPU_HOLD) -> np.ndarray:
    """Returns ``[n]`` seconds: each point predicted with parameters that were fitted to all others."""
    keep = ~np.eye(len(seconds), dtype=bool)
    fitted = [fit(terms[kept], seconds[kept], start, hold) for kept in keep]
    return np.array([of @ parameters.as_vector() for of, parameters in zip(terms, fitted, strict=True)])


def fit_first_tokens(
    parts_s: np.ndarray, served: np.ndarray, measured_s: np.ndarray, start: Parameters, hold: Hold = GPU_HOLD
) -> Parameters:
    """Returns ``start`` with the parameters of prompts and of a server's time that predict first tokens best.

    Held to ``start`` like ``fit``.

    Args:
        parts_s: ``[n, 8]``, the seconds of each term of the prompts' steps by ``start``.
        served: ``[n]``, 1 where a server's time is part of the measured one, else 0.
        measured_s: ``[n]``, from the arrival of the prompts to their first tokens.
    """
    fitted = [_COMPUTE, _CPU_ATTENTION, _CPU_EAGER]
    columns = np.column_stack([parts_s[:, fitted], served * start.server_s]) / measured_s[:, None]
    rest = np.delete(parts_s, fitted, axis=1).sum(1)
    lhs = np.vstack([columns, hold.pull * np.eye(4)])
    rhs = np.concatenate([1 - rest / measured_s, np.full(4, hold.pull)])
    found, *_ = np.linalg.lstsq(lhs, rhs, rcond=None)
    compute, attention, eager, server = map(float, np.clip(found, 1 / hold.farthest, hold.farthest))
    return replace(
        start,
        compute_share=start.compute_share / compute,
        cpu_attention_share=start.cpu_attention_share / attention,
        cpu_eager_s=start.cpu_eager_s * eager,
        server_s=start.server_s * server,
    )
