"""The documentation that is generated, with what extensions add to it."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documentation_is_that_of_the_catalogue() -> None:
    """``python docs/settings.py`` writes it again."""
    made = runpy.run_path(str(DOCS / "settings.py"))
    for name in ("settings", "endpoints", "api"):
        assert (DOCS / f"{name}.md").read_text(encoding="utf-8") == made[f"{name}_page"]()
