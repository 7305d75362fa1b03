"""The flags of ``roseplay serve`` for replicas."""

from __future__ import annotations

import pytest

from tests.serve.test_server_flags import refused


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--replicas 2", "--replicas needs --ray"),
        ("--autoscale 1..2", "--autoscale needs --ray"),
        ("--routing prefix", "--routing needs --ray"),
        ("--ray --routing random", "invalid choice"),
        ("--ray --replicas 0", "it is 0: use 1 to 1,000,000"),
        ("--ray --replicas two", "it is two: use 1 to 1,000,000"),
        ("--ray --autoscale 2..2", "not a range"),
        ("--ray --autoscale 0..2", "not a range"),
        ("--ray --autoscale 2", "not a range"),
        ("--ray --replicas 2 --autoscale 1..2", "not both"),
    ],
)
def test_flags_that_are_refused(flags: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refused(flags, capsys)
