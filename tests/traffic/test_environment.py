from __future__ import annotations

import pytest

from roseplay.traffic.environment import overload


@pytest.mark.parametrize(
    ("used_s", "overloaded"), [((7.0, 7.0), False), ((0.0, 1e6), True), ((1e6, 1e6), False), ((None, None), False)]
)
def test_other_programs_keep_a_machine_busy_by_what_they_use_from_now_on(
    used_s: tuple[float | None, float | None], overloaded: bool
) -> None:
    values = iter(used_s)
    assert overload(lambda: next(values))() is overloaded
