"""Joins the page's ES modules into scripts: one of the page, and one for each tab that an extension adds.

There is no build step: the server joins the modules when one of the scripts is first requested. So a visit needs two
requests instead of a hundred. Source maps lead debuggers to the modules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from roseplay.formats.modules import STATIC, as_statement, in_order, read_modules
from roseplay.play.tab import Tab, added_tabs

PAGE = "page.js"

_PAGE_HEAD = """const modules = {};
const load = async (name) => modules[name] ?? (await import(`./${name.split("/")[0]}.js`), modules[name]);
export { load, modules };
"""
_PAGE_END = "window.Rose.load = load;\n"  # a handle for the console and for tests
_TAB_HEAD = f'import {{ modules }} from "./{PAGE}";\n'


@cache
def joined() -> dict[str, str]:
    """Returns the scripts of the page and its tabs, and their source maps, by name."""
    return join(STATIC, added_tabs())


def join(folder: Path, tabs: Iterable[Tab] = ()) -> dict[str, str]:
    """Returns the scripts of a folder's and tabs' modules, and their source maps, by name.

    ``page.js`` has the page's modules and those that come with it, see ``Tab.entry``; ``NAME.js`` the others of a tab.
    ``page.js`` exports ``load``, which returns a promise of what a module exports, by its path:
    ``load("live/itl.js")``.

    Raises:
        ValueError: a module imports or exports in a form that cannot be joined, modules import each other in a circle,
            or a module imports one that does not exist or is a tab's.
    """
    modules = read_modules(folder)
    page = in_order(modules, modules)
    for tab in tabs:
        modules |= read_modules(tab.static, tab.name)
    page = in_order([*page, *(f"{tab.name}/{tab.entry}" for tab in tabs)], modules)
    scripts = _script(PAGE, _PAGE_HEAD, page, modules, _PAGE_END)
    for tab in tabs:
        names = in_order([name for name in modules if name.startswith(f"{tab.name}/")], modules)
        scripts |= _script(f"{tab.name}.js", _TAB_HEAD, [name for name in names if name not in page], modules)
    return scripts


def _script(script: str, head: str, names: list[str], modules: Mapping[str, str], end: str = "") -> dict[str, str]:
    """Returns a script and its source map, whose sections map lines to modules."""
    text, sections = head, []
    for name in names:
        lines = modules[name].count("\n")
        mappings = ";".join(["AAAA", *["AACA"] * (lines - 1)])  # line by line
        section = {"version": 3, "sources": [name], "names": [], "mappings": mappings}
        sections.append({"offset": {"line": text.count("\n") + 1, "column": 0}, "map": section})
        text += as_statement(name, modules[name])
    text += f"{end}//# sourceMappingURL={script}.map\n"
    return {script: text, f"{script}.map": json.dumps({"version": 3, "file": script, "sections": sections})}
