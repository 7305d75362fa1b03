"""The page's own scripts: none of them writes markup, so that text which somebody else wrote stays text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from roseplay.play.assets import STATIC

SCRIPTS = sorted(STATIC.glob("*.js"))
WRITES_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML|srcdoc"
    r"|\beval\s*\(|new\s+Function\b|set(?:Timeout|Interval)\s*\(\s*[\"'`]|setAttribute\(\s*[\"'`]on|javascript:"
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_writes_markup(path: Path) -> None:
    found = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if WRITES_MARKUP.search(line)]
    assert found == []


def test_the_pattern_finds_what_it_is_for() -> None:
    for line in (
        "head.innerHTML = legend;",
        'card.insertAdjacentHTML("beforeend", x)',
        "setTimeout('x()', 1)",
        "eval(x)",
    ):
        assert WRITES_MARKUP.search(line), line
    assert len(SCRIPTS) > 40
