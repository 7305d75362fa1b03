"""The data that the server puts into a page, for tests of the page's modules without a page."""

from __future__ import annotations

from typing import Any

from roseplay.config import catalogue
from roseplay.engine.records import COLUMNS
from roseplay.play.tab import added_tabs
from roseplay.recording.schema import READER


def given(settings: Any = None) -> dict[str, Any]:
    """The data that modules read on import, in the form of ``shared/given.js``."""
    empty: dict[str, Any] = {
        "terms": {},
        "tabs": {tab.name: tab.given for tab in added_tabs()},
        "controls": {},
        "demos": [],
    }
    return {"settings": settings or catalogue(), "columns": COLUMNS, "recordingShape": READER, **empty}
