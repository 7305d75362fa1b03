"""Joins the page's ES modules into two scripts, so that a visit needs two requests for them instead of a hundred.

There is no build step: the server joins the modules when one of the scripts is first requested. Source maps lead
debuggers to the modules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from roseplay.formats.modules import STATIC, as_statement, in_order, read_modules

PAGE, LAB = "page.js", "lab.js"  # the latter is fetched with the Lab tab

# Modules that are loaded with the Lab tab; without it, the page only needs to know which result its address names.
_OF_LAB = re.compile(r"lab/(?!address|state)")

_HEADS = {
    PAGE: """const modules = {};
const load = async (name) => modules[name] ?? (await import("./lab.js"), modules[name]);
export { load, modules };
""",
    LAB: 'import { modules } from "./page.js";\n',
}
_ENDS = {PAGE: "window.Rose.load = load;\n", LAB: ""}  # a handle for the console and for tests


@cache
def joined() -> dict[str, str]:
    """Returns the page's two scripts and their source maps by name."""
    return join(STATIC)


def join(folder: Path) -> dict[str, str]:
    """Returns the two scripts of a folder's modules, and their source maps, by name.

    ``page.js`` exports ``load``, which returns a promise of what a module exports, by its path:
    ``load("live/itl.js")``.

    Raises:
        ValueError: a module imports or exports in a form that cannot be joined, modules import each other in a circle,
            or the page imports a module that is only loaded with the Lab.
    """
    modules = read_modules(folder)
    page = in_order([name for name in modules if not _OF_LAB.match(name)], modules)
    if early := [name for name in page if _OF_LAB.match(name)]:
        raise ValueError(f"the page imports {', '.join(early)}, which only the Lab's tab loads")
    lab = [name for name in in_order(modules, modules) if name not in page]
    return _script(PAGE, page, modules) | _script(LAB, lab, modules)


def _script(script: str, names: list[str], modules: Mapping[str, str]) -> dict[str, str]:
    """Returns a script and its source map, whose sections map lines to modules."""
    text, sections = _HEADS[script], []
    for name in names:
        lines = modules[name].count("\n")
        mappings = ";".join(["AAAA", *["AACA"] * (lines - 1)])  # line by line
        section = {"version": 3, "sources": [name], "names": [], "mappings": mappings}
        sections.append({"offset": {"line": text.count("\n") + 1, "column": 0}, "map": section})
        text += as_statement(name, modules[name])
    text += f"{_ENDS[script]}//# sourceMappingURL={script}.map\n"
    return {script: text, f"{script}.map": json.dumps({"version": 3, "file": script, "sections": sections})}
