"""The documents name what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("roseplay/**/*.md")]
READING = ROOT / "docs" / "reading.md"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (path.parent / target).exists(), target


def test_the_engine_can_be_read_in_an_evening() -> None:
    files = re.findall(r"\]\(\.\./(roseplay/[^)]+\.py)\)", READING.read_text(encoding="utf-8"))
    assert len(files) > 12
    assert sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in files) <= 3500
