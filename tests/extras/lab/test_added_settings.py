"""Settings that are added to the catalogue can differ between A and B, although the Lab does not name them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_flags_offers_and_orders_have_them(repository: Path) -> None:
    command = [sys.executable, "-m", "tests.extras.lab.added_settings"]
    ended = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert "--zeal, --no-zeal Whether it tries hard. (default: on)" in found["help"]
    assert (found["offered"]["knobs"]["patience"], found["offered"]["engine"]["zeal"]) == (3, True)
    assert found["order"]["arm"] == [2, {"zeal": False}]
    assert found["order"]["refused"] == "arm A: patience is 10: use an integer from 1 to 9"
