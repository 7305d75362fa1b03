"""The page's own scripts: modules fit together, stay readable, and write no markup, so that text stays text."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest

from roseplay.play.tab import added_tabs
from roseplay.play.web import assets

# With those of tabs that extensions add.
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in assets.files().items() if name.endswith(".js")}
WRITES_MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|setHTML|srcdoc"
    r"|\beval\s*\(|new\s+Function\b|set(?:Timeout|Interval)\s*\(\s*[\"'`]|setAttribute\(\s*[\"'`]on|javascript:"
)
IMPORT = re.compile(r'^import (?:\{([^}]*)\} from )?"([^"]+)";$', re.M)
EXPORT = re.compile(r"^export (?:async )?(?:function|const|let|class) (\w+)", re.M)
FUNCTION = re.compile(r"^\s*(?!(?:if|for|while|switch|catch|do|\}) ?).*(?:\bfunction\b.*|=>|\)) \{$")
MOST_COLUMNS, MOST_LINES = 120, 80
OURS = Path(__file__).parents[3]


def imports(name: str) -> dict[str, list[str]]:
    """The names that a module imports, by imported module."""
    folder = PurePosixPath(name).parent
    found: dict[str, list[str]] = {}
    for names, where in IMPORT.findall(TEXTS[name]):
        parts: list[str] = []
        place = PurePosixPath(where.removeprefix("page/")) if where.startswith("page/") else folder / where
        for part in place.parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        found.setdefault("/".join(parts), []).extend(
            one.partition(" as ")[0].strip() for one in names.split(",") if one.strip()
        )
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_no_script_writes_markup(name: str) -> None:
    found = [line.strip() for line in TEXTS[name].splitlines() if WRITES_MARKUP.search(line)]
    assert found == []


def test_the_pattern_finds_what_it_is_for() -> None:
    for line in (
        "head.innerHTML = legend;",
        'card.insertAdjacentHTML("beforeend", x)',
        "setTimeout('x()', 1)",
        "eval(x)",
    ):
        assert WRITES_MARKUP.search(line), line
    assert len(TEXTS) > 40


def test_all_views_share_one_chart_layer() -> None:
    """Scales and axes are made in ``shared/chart`` alone, and one module calls Plotly."""
    calls_plotly = re.compile(r"\bPlotly\.(?!js\b)\w+\(")
    assert [name for name, text in TEXTS.items() if calls_plotly.search(text)] == ["shared/chart/plotly.js"]
    layer = ("shared/chart/axes.js", "shared/chart/plotly.js", "shared/chart/scale.js")
    theirs = {name for module in layer for name in EXPORT.findall(TEXTS[module])}
    again = re.compile(rf"^(?:export )?(?:function|const|class) (?:{'|'.join(theirs)})\b", re.M)
    assert {name for name, text in TEXTS.items() if again.search(text)} == set(layer)
    users = {name.split("/")[0] for name in TEXTS for module in imports(name) if module.startswith("shared/chart/")}
    assert "live" in users


EXPORTS = {name: set(EXPORT.findall(text)) for name, text in TEXTS.items()}


def test_every_import_is_exported() -> None:
    for name in TEXTS:
        for module, names in imports(name).items():
            assert set(names) <= EXPORTS[module], (name, module)


def test_no_module_imports_itself_by_way_of_others() -> None:
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " imports ".join((*way, name))
        if name not in done:
            for module in imports(name):
                visit(module, (*way, name))
            done.add(name)

    for name in TEXTS:
        visit(name, ())


def test_folders_depend_on_what_is_below_them() -> None:
    """Shared modules do not import any view, and tabs can be removed."""
    added = {tab.name for tab in added_tabs()}
    above = {"shared": {"live", "lanes", "replay", "traces"}, "lanes": {"live", "replay", "traces"}}
    above |= {"live": {"replay", "traces"}, "replay": {"live", "lanes", "traces"}}
    above = {folder: views | added for folder, views in above.items()}
    above |= {folder: {"live", "lanes", "replay", "traces"} for folder in added}
    wrong = [
        (name, module)
        for name in TEXTS
        for module in imports(name)
        if PurePosixPath(module).parts[0] in above.get(PurePosixPath(name).parts[0], set())
    ]
    assert wrong == []


def test_axes_are_made_by_the_shared_charts() -> None:
    """The grid, Plotly's axes, and where a value lies: views leave all of that to ``shared/chart``."""
    makes_axes = re.compile(r"\bT\.grid\b|\bPlotly\.|/ area\.(?:width|height)|\) \* area\.(?:width|height)")
    found = {name for name, text in TEXTS.items() if makes_axes.search(text)}
    assert found == {"shared/chart/axes.js", "shared/chart/plotly.js"}


def test_the_page_has_one_global() -> None:
    found = {name for name, text in TEXTS.items() if re.search(r"\b(?:window|globalThis|self)\.\w+ = ", text)}
    assert found == {"main.js"}


def test_no_style_of_the_whole_page_depends_on_what_is_in_it() -> None:
    """With ``body:has(…)``, browsers style the page anew whenever anything in it changes; scripts set a class instead."""
    sheets = (path.read_text() for name, path in assets.files().items() if name.endswith(".css"))
    assert [found for text in sheets for found in re.findall(r"body\S*:has\(.*", text)] == []


@pytest.mark.parametrize("name", TEXTS)
def test_lines_and_functions_are_short(name: str) -> None:
    lines = TEXTS[name].splitlines()
    assert [line for line in lines if len(line) > MOST_COLUMNS] == []
    for start, line in enumerate(lines):
        if FUNCTION.match(line):
            end = "}".rjust(len(line) - len(line.lstrip()) + 1)
            length = next(n for n, last in enumerate(lines[start + 1 :], 2) if last.startswith(end))
            assert length <= MOST_LINES, line
