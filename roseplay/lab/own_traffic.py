"""The user's own traffic in an experiment, in place of a scenario's requests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roseplay.traffic.own import OwnRequest, at_rate, parse_rows, parse_traffic
from roseplay.traffic.prompts import PromptMix
from roseplay.traffic.scenario import MAX_RATE_PER_S, Scenario, checked_number

MAX_NAME = 80

# Stands in when the user's own traffic is used and no scenario is named.
OWN = Scenario(
    name="own-traffic",
    title="Own traffic",
    card="Requests from a file.",
    look=("ITL p99 and TTFT p95 under the traffic of the file.", "The price depends on what is changed."),
    watch="itl_p99_ms",
    mix=PromptMix(),
)


@dataclass(frozen=True, slots=True)
class OwnTraffic:
    """Requests from a file, and its name."""

    name: str
    requests: tuple[OwnRequest, ...]

    def has_prompts_of(self, other: OwnTraffic | None) -> bool:
        """Whether the other traffic has the same requests, at whatever times."""
        mine, theirs = ([request[1:] for request in of.requests] if of else None for of in (self, other))
        return mine == theirs

    def at_rate(self, rate_per_s: float) -> OwnTraffic:
        """Returns the same requests at another mean rate; raises ``ValueError`` if all arrive at once."""
        return OwnTraffic(self.name, tuple(at_rate(self.requests, rate_per_s)))

    def of(self, scenario: Scenario) -> Scenario:
        """Returns the scenario with a description that fits these requests instead of its own."""
        title = scenario.title if scenario is OWN else f"{scenario.title}, own traffic"
        longest = max(request.answer_tokens for request in self.requests)
        return dataclasses.replace(
            scenario,
            title=f"{title}: {self.name}" if self.name else title,
            num_requests=len(self.requests),
            max_new_tokens=longest,
            arrivals="burst",
            rate_per_s=None,
            prompt=None,
        )

    def figures(self) -> dict[str, Any]:
        """Returns the name, the number of requests and the seconds over which they arrive."""
        return {"name": self.name, "requests": len(self.requests), "span_s": round(self.requests[-1].arrival_s, 3)}

    def document(self) -> dict[str, Any]:
        """Returns the traffic in the format of a result, which ``parse_own_traffic`` reads."""
        return {"name": self.name, "requests": [request.row() for request in self.requests]}


def parse_own_traffic(given: Any, seed: int) -> OwnTraffic:
    """Parse traffic from a page or a program.

    It is either ``{"text": "…"}``, a file's content in the format of ``traffic.own``, with an optional ``rate_per_s``;
    or ``{"requests": [[arrival_s, prompt, answer_tokens, tenant, priority], …]}``, as in a result. ``name`` is the file's.

    Raises:
        ValueError: the traffic is invalid; the message is one sentence for the sender.
    """
    given = checked_object(given, "traffic", ("name", "text", "requests", "rate_per_s"))
    name, text, rate = parse_name(given.get("name"), "the name of traffic"), given.get("text"), given.get("rate_per_s")
    if rate is not None:
        rate = checked_number("rate_per_s", rate, 0.1, MAX_RATE_PER_S, whole=False)
    if (text is None) == (given.get("requests") is None):
        raise ValueError("traffic needs either the text of a file, or requests")
    if text is None:
        if rate is not None:
            raise ValueError("rate_per_s is for the text of a file: requests have arrivals")
        return OwnTraffic(name, tuple(parse_rows(given["requests"])))
    if not isinstance(text, str):
        raise ValueError("the text of traffic must be text")
    return OwnTraffic(name, tuple(parse_traffic(text.encode("utf-8", "replace"), rate_per_s=rate, seed=seed)))


def parse_name(value: Any, what: str) -> str:
    """Returns a name, empty for ``None``; raises ``ValueError``."""
    if value is not None and (not isinstance(value, str) or len(value) > MAX_NAME):
        raise ValueError(f"{what} must be text of at most {MAX_NAME} characters")
    return value or ""


def checked_object(value: Any, what: str, keys: Sequence[str] | Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns a JSON object, empty for ``None``; raises ``ValueError`` for other types and for keys not in ``keys``."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{what} must be a JSON object")
    unknown = sorted(set(value) - set(keys)) if keys is not None else []
    if keys is not None and unknown:
        raise ValueError(f"{what} cannot have {', '.join(unknown)}: use {', '.join(keys)}")
    return dict(value)
