"""What an engine can report and be asked: all of it in process, less over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine's users can see of it and do to it.

    Attributes:
        blocks: the telemetry has the state of each KV block.
        steps: it has a record of each step.
        knobs: the scheduler's settings can be read and changed.
        cached_tokens: each request says how many of its prompt's tokens were cached.
        queue: it is known how many requests run and wait.
        kv_usage: it is known how much of the KV cache is held.
        prefix_hit_rate: it is known how many of all prompt tokens were cached.
        server_times: each request says how long it waited and how long its prompt took, as the engine measured it.
        pause: it can be paused.
        clear_cache: its prefix cache can be cleared.
        inspect: a block's content can be read.
        reasons: for each that is not there, why, in a few words for people.
    """

    blocks: bool = True
    steps: bool = True
    knobs: bool = True
    cached_tokens: bool = True
    queue: bool = True
    kv_usage: bool = True
    prefix_hit_rate: bool = True
    server_times: bool = True
    pause: bool = True
    clear_cache: bool = True
    inspect: bool = True
    reasons: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def without(cls, reasons: Mapping[str, str]) -> Capabilities:
        """Returns all capabilities but these, by name, with the reason for each."""
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
        """Returns these and one more."""
        return self.without({absent: reason for absent, reason in self.reasons.items() if absent != name})
