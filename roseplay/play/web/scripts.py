"""Joins the page's ES modules into two scripts, so that a visit needs two requests for them instead of a hundred.

There is no build step: the server joins the modules when one of the scripts is first requested. Each module becomes a
function that runs once, after those that it imports, and returns its exports. Source maps lead debuggers to the
modules.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

PAGE, LAB = "page.js", "lab.js"  # the latter is fetched with the Lab tab

# Modules that are loaded with the Lab tab; without it, the page only needs to know which result its address names.
_OF_LAB = re.compile(r"lab/(?!address|state)")
_NO_MODULE = re.compile(r"boot|shared/types")
_IMPORT = re.compile(r'^import (?:\{(?P<names>[^}]*)\} from )?"(?P<path>[^"]+)";', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (?P<name>\w+))", re.MULTILINE)
_OTHER_FORM = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)

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
    return join(Path(__file__).parents[1] / "static")


def join(folder: Path) -> dict[str, str]:
    """Returns the two scripts of a folder's modules, and their source maps, by name.

    ``page.js`` exports ``load``, which returns a promise of what a module exports, by its path:
    ``load("live/itl.js")``.

    Raises:
        ValueError: a module imports or exports in a form that cannot be joined, modules import each other in a circle,
            or the page imports a module that is only loaded with the Lab.
    """
    modules = {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.js")}
    modules = {name: text for name, text in sorted(modules.items()) if not _NO_MODULE.match(name)}
    page = _in_order([name for name in modules if not _OF_LAB.match(name)], modules)
    if early := [name for name in page if _OF_LAB.match(name)]:
        raise ValueError(f"the page imports {', '.join(early)}, which only the Lab's tab loads")
    lab = [name for name in _in_order(modules, modules) if name not in page]
    return _script(PAGE, page, modules) | _script(LAB, lab, modules)


def _in_order(wanted: Iterable[str], modules: Mapping[str, str]) -> list[str]:
    """Returns modules and their imports, each after its own imports."""
    order: list[str] = []
    begun: set[str] = set()

    def visit(name: str) -> None:
        if name in begun:
            if name not in order:
                raise ValueError(f"{name} imports itself by way of other modules")
            return
        begun.add(name)
        for found in _IMPORT.finditer(modules[name]):
            visit(_imported(name, found["path"]))
        order.append(name)

    for name in wanted:
        visit(name)
    return order


def _imported(importer: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))


def _script(script: str, names: list[str], modules: Mapping[str, str]) -> dict[str, str]:
    """Returns a script and its source map, whose sections map lines to modules."""
    text, sections = _HEADS[script], []
    for name in names:
        text += f'modules["{name}"] = (() => {{\n'
        lines = modules[name].count("\n")
        mappings = ";".join(["AAAA", *["AACA"] * (lines - 1)])  # line by line
        section = {"version": 3, "sources": [name], "names": [], "mappings": mappings}
        sections.append({"offset": {"line": text.count("\n"), "column": 0}, "map": section})
        text += _as_function_body(name, modules[name]) + "})();\n"
    text += f"{_ENDS[script]}//# sourceMappingURL={script}.map\n"
    return {script: text, f"{script}.map": json.dumps({"version": 3, "file": script, "sections": sections})}


def _as_function_body(name: str, text: str) -> str:
    """Returns a module with its imports as constants and its exports returned; line numbers do not change."""
    exports = [found["name"] for found in _EXPORT.finditer(text)]

    def constants(found: re.Match[str]) -> str:
        if not found["names"]:
            return ""
        names = re.sub(r" as ", ": ", found["names"])
        return f'const {{{names}}} = modules["{_imported(name, found["path"])}"];'

    body = _EXPORT.sub("", _IMPORT.sub(constants, text))
    if left := _OTHER_FORM.search(body):
        raise ValueError(f"{name} cannot be joined with the page's other modules: {left[0]}")
    return f"{body}return {{ {', '.join(exports)} }};\n"
