"""The limits that a deployment should hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roseplay.sim.summary import Summary

_PART = re.compile(r"(ttft|itl)\s*=\s*([0-9.]+)\s*(ms|s)")


@dataclass(frozen=True, slots=True)
class SLO:
    """The largest p95 of the times to first tokens and of the pauses between tokens, in seconds; None is no limit."""

    ttft_s: float | None
    itl_s: float | None

    @classmethod
    def parse(cls, text: str) -> SLO:
        """Read ``ttft=500ms,itl=50ms``, one or both of them. Raises ``ValueError`` that says what is wrong."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            found = _PART.fullmatch(part.strip().lower())
            if found is None or found[1] in limits:
                raise ValueError(f"the limits {text!r} cannot be read at {part.strip()!r}: write ttft=500ms,itl=50ms")
            try:
                limits[found[1]] = float(found[2]) / (1e3 if found[3] == "ms" else 1)
            except ValueError:
                raise ValueError(f"{found[2]!r} in the limits {text!r} is not a number") from None
        if not all(limits.values()):
            raise ValueError(f"a limit in {text!r} is 0: nothing can hold it")
        return cls(limits.get("ttft"), limits.get("itl"))

    def use(self, found: Summary) -> float:
        """Returns the largest share of a limit that is used; at most 1 if all limits are held."""
        pairs = ((found.ttft_s[1], self.ttft_s), (found.itl_s[1], self.itl_s))
        return max(value / limit for value, limit in pairs if limit is not None)

    def missed(self, found: Summary) -> list[str]:
        """Returns the names of the limits that are not held."""
        pairs = (("TTFT", found.ttft_s[1], self.ttft_s), ("ITL", found.itl_s[1], self.itl_s))
        return [name for name, value, limit in pairs if limit is not None and value > limit]

    def __str__(self) -> str:
        pairs = (("TTFT", self.ttft_s), ("ITL", self.itl_s))
        return " and ".join(f"{name} p95 {limit * 1e3:g} ms" for name, limit in pairs if limit is not None)
