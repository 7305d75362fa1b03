"""Whether requests wait longer and longer, so that an engine is saturated. Imports no engine."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

_GROWTH, _GROWTH_S = 1.5, 0.25  # of waits, from the second quarter of a run to its last


def waits_grow(ttft_s: Sequence[float]) -> bool:
    """Returns whether times to first token, in seconds and in order of arrival, grow clearly during a run."""
    quarter = len(ttft_s) // 4
    if not quarter:
        return False
    second, last = fmean(ttft_s[quarter : 2 * quarter]), fmean(ttft_s[-quarter:])
    return last > _GROWTH * second + _GROWTH_S
