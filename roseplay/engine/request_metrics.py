"""The times and counts of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from roseplay.engine.ttft_causes import TTFTCauses


@dataclass(frozen=True, slots=True)
class ServerTimes:
    """What another engine's server measured for a request, in seconds; ``None`` for what it does not report."""

    queue_s: float | None = None  # time until the request was scheduled
    prefill_s: float | None = None  # time from then until its first token
    decode_s: float | None = None  # time from its first token to its last


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request in ns of the engine's clock; the properties are in seconds, ``None`` while undefined."""

    submitted_ns: int
    prompt_tokens: int
    scheduled_ns: int | None = None
    first_token_ns: int | None = None
    last_token_ns: int | None = None
    finished_ns: int | None = None
    accepted_ns: int | None = None
    # When the request should have been submitted according to the traffic that it belongs to; else ``None``.
    due_ns: int | None = None
    cached_tokens: int = 0
    shared_tokens: int = 0
    completion_tokens: int = 0
    num_preemptions: int = 0
    # How many answers to its prompt were asked for, if this is the first of them; else ``None``.
    answers: int | None = 1
    # For each token but the first, the time since the token before it: 0 if both arrived together, as tokens that were
    # drawn in one step do, or tokens in one message of a server.
    itl_ns: list[int] = field(default_factory=list)
    sent_ns: int | None = None  # for a request to another engine's server, when its last byte was written to the socket
    first_byte_ns: int | None = None  # for such a request, when the first byte of the reply arrived
    server: ServerTimes | None = None  # the times that the server itself reports
    # The parts of its time to first token; ``None`` before it, and for another engine's request.
    ttft_causes: TTFTCauses | None = None

    def took(self, time_ns: int) -> None:
        """Record the time of a new token."""
        if self.last_token_ns is None:
            self.first_token_ns = time_ns
        else:
            self.itl_ns.append(time_ns - self.last_token_ns)
        self.last_token_ns = time_ns
        self.completion_tokens += 1

    def _since_submit(self, time_ns: int | None) -> float | None:
        return _between(self.submitted_ns, time_ns)

    @property
    def queue_s(self) -> float | None:
        """Time until the request was scheduled, measured here or reported by a server."""
        if self.scheduled_ns is None and self.server is not None:
            return self.server.queue_s
        return self._since_submit(self.scheduled_ns)

    @property
    def sent_s(self) -> float | None:
        return self._since_submit(self.sent_ns)

    @property
    def ttft_s(self) -> float | None:
        return self._since_submit(self.first_token_ns)

    @property
    def ttft_parts_ms(self) -> list[float] | None:
        """The parts of its time to first token in ms, in the order of ``TTFTCauses``."""
        return None if self.ttft_causes is None else [round(part * 1e3, 2) for part in self.ttft_causes]

    @property
    def e2e_s(self) -> float | None:
        return self._since_submit(self.finished_ns)

    @property
    def saved_tokens(self) -> int:
        """Prompt tokens that were not computed for it: found in the cache, or shared within a step."""
        return self.cached_tokens + self.shared_tokens

    @property
    def prefill_s(self) -> float | None:
        return _between(self.scheduled_ns, self.first_token_ns)

    @property
    def decode_s(self) -> float | None:
        return _between(self.first_token_ns, self.last_token_ns)

    @property
    def inference_s(self) -> float | None:
        return _between(self.scheduled_ns, self.last_token_ns)

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; undefined for fewer than two tokens."""
        if self.completion_tokens < 2 or self.first_token_ns is None or self.last_token_ns is None:
            return None
        return (self.last_token_ns - self.first_token_ns) / (self.completion_tokens - 1) / 1e9

    @property
    def itl_s(self) -> list[float]:
        """The gaps between arrivals: tokens that arrive together are one arrival, as their reader waits only once."""
        return [gap / 1e9 for gap in self.itl_ns if gap]


def _between(begin_ns: int | None, end_ns: int | None) -> float | None:
    return None if begin_ns is None or end_ns is None else (end_ns - begin_ns) / 1e9
