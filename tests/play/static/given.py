"""What the server puts into a page, for the page's modules without one."""

from __future__ import annotations

from typing import Any

from roseplay.play.terms import SETTINGS
from roseplay.recording.frame_rows import COLUMNS


def given(settings: Any = SETTINGS) -> dict[str, Any]:
    """What modules read when they are imported, in the form of ``shared/given.js``."""
    return {"settings": settings, "columns": COLUMNS, "terms": {}, "labTerms": {}, "controls": {}, "demos": []}
