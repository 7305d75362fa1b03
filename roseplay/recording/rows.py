"""Rows of steps and tokens, from the engine's telemetry, in times of the page's clock."""

from __future__ import annotations

from collections.abc import Collection

from roseplay.clock import Clock
from roseplay.engine.records import FIGURES, StepRecord, StepRow, TokenRow
from roseplay.engine.telemetry import TokenEvent
from roseplay.recording.step_limit import limit_of


class PageTime:
    """Converts times of the engine's clock to milliseconds since the page's server started."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.zero_ns = clock.now_ns()

    def ms(self, time_ns: int) -> float:
        return round((time_ns - self.zero_ns) / 1e6, 2)

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def now(self) -> float:
        return self.ms(self._clock.now_ns())


def step_row(record: StepRecord, page_time: PageTime, max_waiting: int) -> StepRow:
    """Returns a step as the page has it; ``max_waiting`` is the length of the engine's queue."""
    return StepRow(
        **{name: getattr(record, name) for name in FIGURES},
        t0=page_time.ms(record.start_ns),
        t1=page_time.ms(record.end_ns),
        device_ms=round(record.device_ns / 1e6, 2),
        host_ms=round(record.host_ns / 1e6, 2),
        block_copies=len(record.copied),
        limit=limit_of(record, max_waiting),
    )


def token_rows(tokens: Collection[TokenEvent], page_time: PageTime, number: int) -> list[TokenRow]:
    """Returns tokens as the page has them; ``number`` is that of their step."""
    # Most tokens of a step have the same time and gap.
    times = {time_ns: page_time.ms(time_ns) for time_ns in {token.time_ns for token in tokens}}
    gaps = {itl_ns: itl_ns and round(itl_ns / 1e6, 2) for itl_ns in {token.itl_ns for token in tokens}}
    return [TokenRow(request_id, times[t], gaps[itl_ns], number) for request_id, _, t, itl_ns in tokens]
