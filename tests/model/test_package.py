"""The settings that importing the package makes before torch is loaded."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SHOW = (
    "import sys, os; import roseplay.model; assert 'torch' not in sys.modules; print(os.environ.get('GOMP_SPINCOUNT'))"
)


@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_spin_briefly_unless_the_user_says_otherwise(own: dict[str, str], expected: str):
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], env={**kept, **own}, capture_output=True, text=True, check=True
    )
    assert shown.stdout.strip() == expected
