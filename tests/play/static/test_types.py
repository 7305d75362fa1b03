"""The types that the page's scripts are checked against are those that the server declares."""

from __future__ import annotations

import runpy
from pathlib import Path


def test_records_frames_and_snapshots_are_as_the_server_declares_them() -> None:
    """``python docs/records.py`` writes them again."""
    made = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "records.py"))
    assert made["SCRIPT"].read_text(encoding="utf-8") == made["script"]()
