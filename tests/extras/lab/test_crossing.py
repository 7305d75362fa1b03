"""Where A and B of a sweep cross: only clear differences count, and a value within the spread is on neither side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from roseplay.extras.lab.findings.sweep import Crossing
from roseplay.extras.lab.findings.sweep import crossing as crossing_of
from roseplay.extras.lab.words import words_of
from roseplay.formats.segments import plain
from tests.extras.lab.findings import point

VALUES = (64, 128, 256, 512, 1024)


def crossing(*ratios: float | None, repeats: int = 3, exact: bool = False) -> Crossing:
    """Throughput of B relative to that of A at each value, with repeats that are 4 % apart."""
    extra: dict[str, Any] = {"saturated": [False] * repeats} if exact else {}

    def points(factors: Iterable[float | None]) -> list[dict[str, Any]]:
        speeds = [[by and 100 * by * (1 + 0.02 * (run - 1)) for run in range(repeats)] for by in factors]
        values = zip(VALUES, speeds, strict=False)
        return [point(value, output_tokens_per_s=speed, **extra) for value, speed in values]

    return crossing_of("prompt_tokens", "output_tokens_per_s", points([1.0] * len(VALUES)), points(ratios))


@pytest.mark.parametrize(
    ("ratios", "between", "says"),
    [
        ((0.8, 0.9, 1.01, 1.2, 1.5), [[128, 512]], "A and B cross between 128 and 512 prompt tokens; B is worse at 64 and 128 (×0.80 to ×0.90), better at 512 and 1\u202f024 (×1.20 to ×1.50); elsewhere, within the spread of 3 repeats."),
        ((0.8, 0.9, 1.2, 1.2, 1.2), [[128, 256]], "A and B cross between 128 and 256 prompt tokens; B is worse at 64 and 128 (×0.80 to ×0.90), better at 256, 512 and 1\u202f024 (×1.20)."),
        ((1.1, 1.2, 1.3, 1.4, 1.5), [], "no crossing from 64 to 1\u202f024 prompt tokens; B is better at every value (×1.10 to ×1.50)."),
        ((1.01, 1.2, 1.02, 1.3, 1.4), [], "no crossing from 64 to 1\u202f024 prompt tokens; B is better at 128, 512 and 1\u202f024 (×1.20 to ×1.40); elsewhere, within the spread of 3 repeats."),
        ((0.8, 0.8, 1.01, 0.8, 0.8), [], "no crossing from 64 to 1\u202f024 prompt tokens; B is worse at 4 values from 64 to 1\u202f024 (×0.80); elsewhere, within the spread of 3 repeats."),
        ((0.99, 1.0, 1.01, 1.02, 1.03), [], "no crossing, A and B are within the spread of 3 repeats at every value from 64 to 1\u202f024 prompt tokens."),
        ((0.8, 1.2, 0.8), [[64, 128], [128, 256]], "A and B cross 2 times between 64 and 128 and between 128 and 256 prompt tokens; B is worse at 64 (×0.80), better at 128 (×1.20), worse at 256 (×0.80)."),
        ((None, None), [], None),
    ],
)  # fmt: skip
def test_a_crossing_is_between_two_clear_differences(ratios: Any, between: Any, says: str) -> None:
    found = crossing(*ratios)
    words = "Throughput could not be measured in both." if says is None else f"Throughput: {says}"
    assert (found.between, plain(words_of(found))) == (between, words)


def test_one_run_of_each_shows_only_large_differences_unless_it_is_simulated() -> None:
    ratios = (0.9, 0.95, 1.02, 1.06, 1.1)
    measured, simulated = crossing(*ratios, repeats=1), crossing(*ratios, repeats=1, exact=True)
    assert plain(words_of(measured)).startswith(
        "Throughput: no crossing, A and B are within what one run each can show"
    )
    assert simulated.between == [[128, 512]]
    assert plain(words_of(simulated)).endswith("; elsewhere, about the same.")
