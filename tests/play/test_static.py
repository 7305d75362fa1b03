"""The page's own files: no script writes markup, so that text which somebody else wrote stays text; colours agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from roseplay.play.web.assets import STATIC
from roseplay.recording.palette import COLOURS

SCRIPTS = sorted(STATIC.rglob("*.js"))
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


def test_a_report_has_the_colours_of_the_page() -> None:
    light = next(STATIC.rglob("tokens.css")).read_text(encoding="utf-8").partition("body.dark")[0]
    page = dict(re.findall(r"--rp-(\w+): (#[0-9A-Fa-f]{6})", light))
    assert {name: page.get(name) for name in COLOURS} == COLOURS
