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

    def of(self, params: SamplingParams) -> tuple[int | None, int]:
        """Returns the number of a request's tenant, ``None`` for nobody's, and its priority."""
        number = None if params.tenant is None else self._number(params.tenant)
        return number, max(-MOST_PRIORITY, min(MOST_PRIORITY, params.priority))

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            self._count += 1
            self._numbers[name] = self._count
            if len(self._numbers) > self._most:
                del self._numbers[next(iter(self._numbers))]
        return self._numbers[name]
