"""The user's own traffic in an experiment, in place of a scenario's requests."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from roseplay.traffic.own import OwnRequest, at_rate
from roseplay.traffic.scenario import Scenario

MAX_NAME = 80

# Stands in when the user's own traffic is used and no scenario is named.
OWN = Scenario(
    name="own-traffic",
    title="Own traffic",
    card="Requests from a file.",
    look=(
        "ITL p99 and TTFT p95 under the traffic of the file.",
        "The price: which figures are worse in B, and by how much.",
    ),
    watch="itl_p99_ms",
)


@dataclass(frozen=True, slots=True)
class OwnTraffic:
    """Requests from a file, and its name."""

    name: str
    requests: tuple[OwnRequest, ...]

    def has_prompts_of(self, other: OwnTraffic | None) -> bool:
        """Whether the other traffic has the same requests, at whatever times."""
        mine, theirs = ([request[1:] for request in traffic.requests] if traffic else None for traffic in (self, other))
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

    def figures(self) -> dict[str, float | str]:
        """Returns the name, the number of requests and the seconds over which they arrive."""
        return {"name": self.name, "requests": len(self.requests), "span_s": round(self.requests[-1].arrival_s, 3)}
