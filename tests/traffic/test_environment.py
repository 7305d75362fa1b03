from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from roseplay.traffic import environment


@pytest.mark.parametrize(("before", "since", "overloaded"), [(0.0, 5.0, True), (9.0, 1.0, False)])
def test_a_load_from_before_does_not_count(
    monkeypatch: pytest.MonkeyPatch, before: float, since: float, overloaded: bool
) -> None:
    now, load = 100.0, before
    monkeypatch.setattr(environment, "os", SimpleNamespace(getloadavg=lambda: (load, 0.0, 0.0)))
    monkeypatch.setattr(environment, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(environment, "num_cpus", lambda: 2)
    is_overloaded = environment.Machine().overload()
    now, load = 130.0, since + (before - since) * math.exp(-30 / 60)
    assert is_overloaded() is overloaded
    assert (load > 3) is not overloaded, "the average of a minute says the opposite"
