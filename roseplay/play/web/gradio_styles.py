"""Joins the style sheets of Gradio's components on the page, so that a visit needs no request for each of them.

Gradio fetches a component's style sheets with its script: some twenty small files. Its loader, which is Vite's, skips
those for which the document has a link, and browsers do not fetch a disabled link. So the page's head contains the
rules, and a disabled link for each file. This relies on the format of Vite's output; if a version of Gradio differs,
nothing is joined, and the loader fetches the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import gradio as gr

FRONTEND = Path(gr.__file__).parent / "templates" / "frontend"

_ENTRY = re.compile(r'<script type="module"[^>]* src="(\./assets/[\w.-]+\.js)"')
_STYLES = re.compile(r'href="\./assets/([\w.-]+\.css)"')
_FILES = re.compile(r"m\.f=(\[[^\]]*\])")  # files that a script's imports need; an import refers to them by number
_COMPONENT = r"[{,]%s:\{[^{}]*?\bcomponent:\(\)=>[^{}]*?__vite__mapDeps\(\[([\d,]+)\]\)"
_REFERS = re.compile(r"@import|@charset|@namespace|</|url\((?![\"']?data:)")  # cannot be moved elsewhere unchanged


def joined_styles(components: Iterable[str], frontend: Path = FRONTEND) -> str:
    """Returns markup for the document's head; "" if nothing can be joined.

    Args:
        components: types of the components on the page, as in Gradio's configuration.
        frontend: the folder of Gradio's built page.
    """
    texts: dict[str, str] = {}
    try:
        for name in _component_styles(components, frontend):
            text = (frontend / "assets" / name).read_text(encoding="utf-8")
            if not _REFERS.search(text):
                texts[name] = text
    except (OSError, ValueError):
        return ""
    links = "".join(f'<link rel="stylesheet" href="./assets/{name}" disabled>' for name in texts)
    return f"<style>{''.join(texts.values())}</style>{links}" if texts else ""


def _component_styles(components: Iterable[str], frontend: Path) -> list[str]:
    """Returns the files' names, without those that Gradio's page fetches before it knows its components."""
    index = (frontend / "index.html").read_text(encoding="utf-8")
    entry = _ENTRY.search(index)
    first = _files((frontend / entry[1]).read_text(encoding="utf-8")) if entry else []
    fetched = {*first, *_STYLES.findall(index)}
    scripts = ((frontend / "assets" / name).read_text(encoding="utf-8") for name in first if name.endswith(".js"))
    script = next((script for script in scripts if ":{component:()=>" in script), "")
    files = _files(script)
    found = [
        files[int(number)]
        for component in components
        for listed in re.finditer(_COMPONENT % re.escape(component), script)
        for number in listed[1].split(",")
        if int(number) < len(files)
    ]
    return [name for name in dict.fromkeys(found) if name.endswith(".css") and name not in fetched]


def _files(script: str) -> list[str]:
    listed = _FILES.search(script)
    return [str(name).removeprefix("./") for name in json.loads(listed[1])] if listed else []
