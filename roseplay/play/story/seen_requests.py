"""The requests of a run, tracked from its frames: which are streaming or waiting, and their latest gaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from roseplay.engine.records import TokenRow

KEEP_MS = 60_000.0
_RECENT = 4096  # tokens whose gaps are kept
_USUAL = 256  # gaps from which the usual one is computed


@dataclass(slots=True)
class SeenRequest:
    """One request. Times are in ms on the page's clock."""

    kind: str
    burst: int | None
    prompt_tokens: int
    submitted: float
    first: float | None = None
    ttft_ms: float | None = None
    finished: float | None = None
    reason: str | None = None


class SeenRequests:
    """All requests that are unfinished or ended within the last minute."""

    def __init__(self) -> None:
        self.by_id: dict[int, SeenRequest] = {}
        self._by_burst: dict[int, dict[int, SeenRequest]] = {}
        self._recent: deque[TokenRow] = deque(maxlen=_RECENT)
        self._slowed_at = float("-inf")  # the latest change of slow motion

    def take_events(self, frame: dict[str, Any]) -> None:
        changed = (t for t, _, changes in frame["knobs"] if "slow_motion" in changes)
        self._slowed_at = max(changed, default=self._slowed_at)
        for request_id, event, t, about in frame["requests"]:
            if event == "submitted":
                seen = SeenRequest(about.get("kind", "api"), about.get("burst"), about.get("prompt_tokens", 0), t)
                self.by_id[request_id] = seen
                if seen.burst is not None:
                    self._by_burst.setdefault(seen.burst, {})[request_id] = seen
            elif (known := self.by_id.get(request_id)) is not None:
                known.ttft_ms = about.get("ttft_ms", known.ttft_ms)
                if event == "first":
                    known.first = t
                elif event == "finished":
                    known.finished, known.reason = t, about.get("reason")
                    known.first = known.first if known.ttft_ms is None else known.submitted + known.ttft_ms

    def take_tokens(self, frame: dict[str, Any]) -> None:
        """Keep the frame's gaps, and forget requests that ended long ago."""
        self._recent.extend(token for token in frame["tokens"][-_RECENT:] if token.itl_ms)
        ended = [i for i, seen in self.by_id.items() if seen.finished and seen.finished < frame["t"] - KEEP_MS]
        for request_id in ended:
            burst = self.by_id.pop(request_id).burst
            if burst is not None and self._by_burst[burst].pop(request_id) and not self._by_burst[burst]:
                del self._by_burst[burst]

    def of_burst(self, burst: int) -> Mapping[int, SeenRequest]:
        """Returns the requests of a burst by ID."""
        return self._by_burst.get(burst, {})

    def streaming(self, t: float) -> set[int]:
        """Returns the requests that had begun to answer by this time and had not ended."""
        return {
            request_id
            for request_id, seen in self.by_id.items()
            if seen.first is not None and seen.first < t and (seen.finished is None or seen.finished > t)
        }

    def gaps_since(self, t: float) -> list[TokenRow]:
        """Returns the latest tokens from this time on that have a gap before them."""
        return [token for token in self._recent if token.t >= t]

    def usual_ms(self, before: float) -> float | None:
        """Returns the median of the latest gaps before a time, under the present slow motion; ``None`` if there were none."""
        gaps = [it.itl_ms for it in self._recent if it.itl_ms and self._slowed_at <= it.t - it.itl_ms and it.t < before]
        return median(gaps[-_USUAL:]) if gaps else None
