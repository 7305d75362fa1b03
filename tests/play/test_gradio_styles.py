"""Gradio's component style sheets in the page's head: which ones, and that an unknown page is left unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from roseplay.play.web.gradio_styles import joined_styles

SHEETS = {
    "index.css": "body{margin:0}",
    "shell.css": ".shell{color:red}",
    "row.css": ".row{display:flex}",
    "box.css": ".box{color:blue}",
    "pictures.css": ".box{background:url(./box.png)}",
    "video.css": ".video{color:green}",
}


def listing(*names: str) -> str:
    files = json.dumps([f"./{name}" for name in names])
    return f"const __vite__mapDeps=(i,m=__vite__mapDeps,d=(m.f||(m.f={files})))=>i.map(i=>d[i]);"


def component(script: str, numbers: str) -> str:
    return f"component:()=>v(()=>import(`./{script}`),__vite__mapDeps([{numbers}]),import.meta.url)"


@pytest.fixture
def frontend(tmp_path: Path) -> Path:
    """Gradio's page as built by Vite, with the components row, box and video."""
    (tmp_path / "assets").mkdir()
    for name, text in SHEETS.items():
        (tmp_path / "assets" / name).write_text(text)
    (tmp_path / "assets" / "entry.js").write_text(listing("core.js", "shell.css"))
    components = [
        f"row:{{{component('row.js', '0,1,2')}}}",
        f"box:{{example:()=>v(()=>import(`./e.js`),__vite__mapDeps([5]),import.meta.url),{component('box.js', '1,3,4')}}}",
        f"video:{{{component('video.js', '5')}}}",
    ]
    map_of = listing("index.css", "shell.css", "row.css", "box.css", "pictures.css", "video.css")
    (tmp_path / "assets" / "core.js").write_text(f"{map_of}var map={{{','.join(components)}}};")
    index = '<script type="module" crossorigin src="./assets/entry.js"></script>'
    index += '<link rel="stylesheet" crossorigin href="./assets/index.css">'
    (tmp_path / "index.html").write_text(index)
    return tmp_path


def test_the_components_of_the_page_bring_theirs(frontend: Path) -> None:
    assert joined_styles(["box", "row", "unknown"], frontend) == (
        "<style>.box{color:blue}.row{display:flex}</style>"
        '<link rel="stylesheet" href="./assets/box.css" disabled><link rel="stylesheet" href="./assets/row.css" disabled>'
    ), "without those that come first, and without one that refers to a file beside it"
    assert joined_styles(["column"], frontend) == ""


@pytest.mark.parametrize("name", ["index.html", "assets/entry.js", "assets/core.js"])
@pytest.mark.parametrize("text", [None, "", "m.f=[0,", "otherwise"])
def test_a_page_that_looks_otherwise_is_left_alone(frontend: Path, name: str, text: str | None) -> None:
    if text is None:
        (frontend / name).unlink()
    else:
        (frontend / name).write_text(text)
    assert joined_styles(["row"], frontend) == ""


def test_a_file_that_is_not_there_is_left_to_gradio(frontend: Path) -> None:
    (frontend / "assets" / "row.css").unlink()
    assert joined_styles(["row"], frontend) == ""


def test_the_installed_gradio_has_them() -> None:
    joined = joined_styles(["html", "slider", "textbox"])
    assert len(re.findall(r"<link [^>]*disabled>", joined)) >= 3
    assert joined.count("<style>") == joined.count("</") == 1
