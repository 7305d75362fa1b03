"""What an engine can report and do: everything in process, less over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can report and do."""

    blocks: bool = True  # the telemetry has the state of each KV block
    steps: bool = True  # the telemetry has a record of each step
    knobs: bool = True  # the scheduler's settings can be read and changed
    cached_tokens: bool = True  # each request has the number of prompt tokens that were cached
    queue: bool = True  # the numbers of running and waiting requests are known
    kv_usage: bool = True  # the share of the KV cache in use is known
    prefix_hit_rate: bool = True  # the share of all prompt tokens that were cached is known
    server_times: bool = True  # each request has its time in the queue and in prefill, as the engine measured them
    pause: bool = True  # the engine can be paused
    clear_cache: bool = True  # the prefix cache can be cleared
    inspect: bool = True  # a block's content can be read
    # By name, why a capability is missing, in a few words to show to users.
    reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def without(cls, reasons: Mapping[str, str]) -> Capabilities:
        """Returns all capabilities except those in ``reasons``, which maps each missing one to its reason."""
        absent: dict[str, Any] = dict.fromkeys(reasons, False)
        return cls(**absent, reasons=dict(reasons))

    def refuse(self, name: str) -> NoReturn:
        """Raises ``ValueError`` with the reason why this capability is absent."""
        raise ValueError(self.reasons[name])

    def require(self, name: str) -> None:
        """Raises ``ValueError`` with the reason if this capability is absent."""
        if not getattr(self, name):
            self.refuse(name)

    def adding(self, name: str) -> Capabilities:
        return self.without({absent: reason for absent, reason in self.reasons.items() if absent != name})
