"""A lane: one chat of one tab, and what its tab does not have of it yet."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from roseplay.core.request import FinishReason
from roseplay.play.book import Tracked

MAX_LANES = 8
_RATE_TOKENS = 32  # the lane's tok/s is over its newest tokens


@dataclass(slots=True)
class Seen:
    """What a tab has of a lane: of which request, how many characters, and the stamp of its state."""

    request_id: int
    chars: int
    stamp: int


def parse_seen(have: str) -> dict[int, Seen]:
    """``have`` of a poll, ``request.chars.stamp`` a lane with commas between; what cannot be read is not seen."""
    seen: dict[int, Seen] = {}
    for part in have.split(",")[: 2 * MAX_LANES] if have else ():
        numbers = part.split(".")
        if len(numbers) == 3 and all(number.isdecimal() and len(number) < 16 for number in numbers):
            request_id, chars, stamp = map(int, numbers)
            seen[request_id] = Seen(request_id, chars, stamp)
    return seen


class Lane:
    """One lane of a tab. It shows its newest request until the next one is sent."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.title = ""
        self.tracked: Tracked | None = None

    def show(self, tracked: Tracked, title: str) -> None:
        self.tracked, self.title = tracked, title

    def news(self, seen: dict[int, Seen], now_ns: int) -> dict[str, Any] | None:
        """What a tab that has ``seen`` lacks of this lane; None if nothing."""
        if self.tracked is None:
            return None
        tracked, stream = self.tracked, self.tracked.stream
        text, state = stream.text, state_of(tracked)
        figures = {
            "state": state,
            "tokens": stream.metrics.completion_tokens,
            "ttft_ms": None if tracked.ttft_s is None else round(tracked.ttft_s * 1000, 1),
            "computed": tracked.computed,
            "target": tracked.target or tracked.prompt_tokens,
            "cached": tracked.cached + tracked.shared,
            "reason": str(stream.finish_reason) if stream.finish_reason else None,
            "error": stream.error,
        }
        stamp = zlib.crc32(repr(figures).encode())
        had = seen.get(tracked.request_id)
        if had and had.stamp == stamp and had.chars == len(text):
            return None
        start = had.chars if had and had.chars <= len(text) else 0
        return {
            "lane": self.number,
            "rid": tracked.request_id,
            "title": self.title,
            "text_from": start,
            "text": text[start:],
            "have": f"{tracked.request_id}.{len(text)}.{stamp}",
            "tok_s": rate(stream.token_times_ns),
            "waiting_ms": None if tracked.finished else round((now_ns - stream.metrics.submitted_ns) / 1e6, 1),
            **figures,
        }


def state_of(tracked: Tracked) -> str:
    """``queued``, ``prefill``, ``decode``, ``stopping``, ``done``, ``stopped`` or ``error``."""
    reason = tracked.stream.finish_reason
    if reason is not None:
        return {FinishReason.ABORT: "stopped", FinishReason.ERROR: "error"}.get(reason, "done")
    if tracked.stopping:
        return "stopping"
    if tracked.stream.metrics.completion_tokens:
        return "decode"
    return "prefill" if tracked.target else "queued"


def rate(times_ns: list[int]) -> float | None:
    """Tokens per second over the newest tokens; None below two."""
    times = times_ns[-_RATE_TOKENS:]
    span = times[-1] - times[0] if len(times) > 1 else 0
    return round((len(times) - 1) * 1e9 / span, 1) if span > 0 else None
