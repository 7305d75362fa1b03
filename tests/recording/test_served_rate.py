"""The rate at which another server generates tokens, from its own count of them."""

from __future__ import annotations

from typing import Any

import pytest

from roseplay.recording.run import Run


def rate(*reports: tuple[float, int | None, int | None], now: float) -> int | None:
    """The rate over 2 s after reports ``(t, running, tokens)``."""
    run = Run({}, {"t": 0.0, "requests": []}, keep_ms=1000)
    nothing: dict[str, Any] = {name: [] for name in ("requests", "steps", "tokens", "knobs")}
    loads = [{"t": t, "running": running, "generation_tokens": tokens} for t, running, tokens in reports]
    run.take({"t": now, **nothing, "loads": loads})
    return run.served_per_s(2000)


@pytest.mark.parametrize(
    ("reports", "now", "expected"),
    [
        ([(0, 4, 0), (1000, 4, 100), (2000, 4, 200), (3000, 4, 400)], 3100, 150),
        ([(0, 4, 0), (4000, 4, 400)], 4100, 100),  # a server that is slow to report
        ([(0, 0, 0), (60_000, 4, 400)], 60_100, 200),  # it began at some time since the last two seconds
        ([(0, 4, 0), (1000, 4, 100)], 9000, None),  # it has not reported anything new for long
        ([(0, 4, 0), (1000, 0, 100)], 3500, None),  # it has nothing to do any more
        ([(0, 4, 100), (1000, 4, 0)], 1100, None),  # it was restarted
        ([(0, 4, 0), (1000, 4, 100), (2000, None, None)], 2100, None),  # it is gone
        ([(0, 4, None), (1000, 4, None)], 1100, None),
        ([(0, 4, 0)], 100, None),
        ([], 100, None),
    ],
)
def test_the_rate_is_that_of_the_newest_reports(
    reports: list[tuple[float, int | None, int | None]], now: float, expected: int | None
) -> None:
    assert rate(*reports, now=now) == expected
