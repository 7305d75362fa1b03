"""The documents refer only to things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from roseplay.play.terms import WORDS

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("roseplay/**/*.md")]
EXTENSIONS = ROOT / "roseplay" / "extras"
READING = ROOT / "docs" / "reading.md"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Links to extensions are left out where there are none."""
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        left_out = "/extras/" in target and not EXTENSIONS.exists()
        assert target.startswith("https://") or (path.parent / target).exists() or left_out, target


@pytest.mark.parametrize("part", ["engine", "page"])
def test_each_part_can_be_read_in_an_evening(part: str) -> None:
    parts = dict(re.findall(r"^# Reading the (\w+)\n(.*?)(?=^# )", READING.read_text(encoding="utf-8"), re.M | re.S))
    files = [READING.parent / name for name in re.findall(r"\]\(([^)]+\.(?:py|js))\)", parts[part])]
    assert len(files) > 12
    assert sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files) <= 3520


def test_the_words_of_the_readme_are_those_of_the_help() -> None:
    terms = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Terms")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| (.+?) \| (.+) \|$", terms, re.M)[1:]) == WORDS
