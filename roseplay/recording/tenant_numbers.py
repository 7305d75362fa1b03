"""Tenants and priorities of requests as all tabs may see them: a tenant is a number, as its name may be a person's."""

from __future__ import annotations

from roseplay.config import SamplingParams

MOST_TENANTS = 1 << 14  # whose number is remembered
MOST_PRIORITY = 2**53 - 1  # a script's largest exact integer


class TenantNumbers:
    """Numbers tenants from 1 in order of appearance. The oldest of too many is forgotten; it gets another number."""

    def __init__(self, most: int = MOST_TENANTS) -> None:
        self._most = most
        self._numbers: dict[str, int] = {}
        self._count = 0

    def fields(self, params: SamplingParams) -> dict[str, int]:
        """Returns the ``tenant`` and the ``priority`` of a request for a frame, as far as it has them."""
        found = {}
        if params.tenant is not None:
            found["tenant"] = self._number(params.tenant)
        if params.priority:
            found["priority"] = max(-MOST_PRIORITY, min(MOST_PRIORITY, params.priority))
        return found

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._count += 1
            self._numbers[name] = self._count
            if len(self._numbers) > self._most:
                del self._numbers[next(iter(self._numbers))]
        return self._numbers[name]
