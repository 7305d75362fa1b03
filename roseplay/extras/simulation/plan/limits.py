"""The limits that a deployment should hold."""

from __future__ import annotations

from dataclasses import dataclass

from roseplay.extras.simulation.evidence import SATURATED
from roseplay.extras.simulation.summary import Summary


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest p95 of the times to first tokens and of the pauses between tokens, in ms; None is no limit.

    Raises ``ValueError`` if there is no limit, or one that nothing can hold.
    """

    ttft_ms: float | None
    itl_ms: float | None

    def __post_init__(self) -> None:
        limits = [limit for limit in (self.ttft_ms, self.itl_ms) if limit is not None]
        if not limits or not all(0 < limit < float("inf") for limit in limits):
            raise ValueError("give --ttft-p95, --itl-p95 or both, in ms above 0")

    def use(self, found: Summary) -> float:
        """Returns the largest share of a limit that is used; at most 1 if all limits are held."""
        return max(self._uses(found).values())

    def fault(self, found: Summary) -> str:
        """Returns why figures do not hold the limits, or depend on the length of the run; empty if they hold them."""
        if found.saturated:
            return SATURATED
        if found.refused:
            return f"{found.refused} requests do not fit"
        missed = [name for name, use in self._uses(found).items() if use > 1]
        return f"misses {' and '.join(missed)}" if missed else ""

    def _uses(self, found: Summary) -> dict[str, float]:
        rows = (("TTFT", found.ttft_s[1], self.ttft_ms), ("ITL", found.itl_s[1], self.itl_ms))
        return {name: 1e3 * seconds / limit for name, seconds, limit in rows if limit is not None}

    def __str__(self) -> str:
        rows = (("TTFT", self.ttft_ms), ("ITL", self.itl_ms))
        return " and ".join(f"{name} p95 {limit:g} ms" for name, limit in rows if limit is not None)
