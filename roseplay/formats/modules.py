"""Joins ES modules of the page into one script, as the page and reports use them.

There is no build step. Each module becomes a function that runs once, after those that it imports, and returns its
exports.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path, PurePosixPath

STATIC = Path(__file__).parents[1] / "play" / "static"

_NO_MODULE = re.compile(r"boot|shared/types")
_IMPORT = re.compile(r'^import (?:\{(?P<names>[^}]*)\} from )?"(?P<path>[^"]+)";', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class) (?P<name>\w+))", re.MULTILINE)
_OTHER_FORM = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def read_modules(folder: Path = STATIC, name: str = "") -> dict[str, str]:
    """Returns the text of each module of the page, or of an extension's folder, by its path.

    Args:
        name: the extension's, with which the paths of its modules begin.
    """
    paths = {PurePosixPath(name, path.relative_to(folder)).as_posix(): path for path in folder.rglob("*.js")}
    names = sorted(path for path in paths if not _NO_MODULE.match(path))
    return {path: paths[path].read_text(encoding="utf-8") for path in names}


@cache
def script_of(name: str, folder: Path | None = None) -> str:
    """Returns a script in which ``modules[name]`` has the exports of a module of the page, with all that it imports.

    Args:
        folder: that of the extension that has the module.
    """
    modules = read_modules() | ({} if folder is None else read_modules(folder, name.partition("/")[0]))
    return "const modules = {};\n" + "".join(as_statement(one, modules[one]) for one in in_order([name], modules))


def in_order(wanted: Iterable[str], modules: Mapping[str, str]) -> list[str]:
    """Returns modules and their imports, each after its own imports."""
    order: list[str] = []
    begun: set[str] = set()

    def visit(name: str) -> None:
        if name in begun:
            if name not in order:
                raise ValueError(f"{name} imports itself by way of other modules")
            return
        begun.add(name)
        if name not in modules:
            raise ValueError(f"there is no module {name}")
        for match in _IMPORT.finditer(modules[name]):
            visit(_imported(name, match["path"]))
        order.append(name)

    for name in wanted:
        visit(name)
    return order


def _imported(importer: str, path: str) -> str:
    """Returns the path of an imported module; extensions import the page's by ``page/`` and its path."""
    if path.startswith("page/"):
        return path.removeprefix("page/")
    return posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))


def as_statement(name: str, text: str) -> str:
    """Returns a statement that sets ``modules[name]``; its first line is followed by the module's own lines.

    Raises:
        ValueError: the module imports or exports in a form that cannot be joined.
    """
    return f'modules["{name}"] = (() => {{\n{_as_function_body(name, text)}}})();\n'


def _as_function_body(name: str, text: str) -> str:
    """Returns a module with its imports as constants and its exports returned; line numbers do not change."""
    exports = [match["name"] for match in _EXPORT.finditer(text)]

    def constants(found: re.Match[str]) -> str:
        if not found["names"]:
            return ""
        names = re.sub(r" as ", ": ", found["names"])
        return f'const {{{names}}} = modules["{_imported(name, found["path"])}"];'

    body = _EXPORT.sub("", _IMPORT.sub(constants, text))
    if left := _OTHER_FORM.search(body):
        raise ValueError(f"{name} cannot be joined with the page's other modules: {left[0]}")
    return f"{body}return {{ {', '.join(exports)} }};\n"
